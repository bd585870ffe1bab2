"""Pictures and how they reach a folder: an SVG, a PNG and the data of each, the same bytes for the same picture.

Also what several figures share: the canvas, a grid of panels, the legend beneath and CSV. What is drawn, and with which
data, is for the modules of the single figures.
"""

import csv
import io
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from analysis.figures.style import INK, SETTINGS
from analysis.results.writer import replaced

_PNG_DPI = 200


@dataclass(frozen=True, kw_only=True, eq=False)
class Picture:
    """One figure: the name of its files, a sentence that says what is seen, the figure and its data as CSV.

    `more` are further files by their ending, such as ".json".
    """

    name: str
    caption: str
    figure: Figure
    data: str
    more: Mapping[str, str] = field(default_factory=dict)

    def __getstate__(self) -> dict[str, Any]:
        """What goes to another process: all but the figure, which only drawing needs."""
        return {**self.__dict__, "svg": self.svg, "figure": None}

    @cached_property
    def svg(self) -> str:
        """The figure as the text of an SVG file."""
        text = io.StringIO()
        with mpl.rc_context(dict(SETTINGS)):
            # What savefig does, but for a first pass that draws nothing.
            FigureCanvasSVG(self.figure).print_svg(  # type: ignore[no-untyped-call]
                text, metadata={"Date": None, "Title": self.caption}
            )
        self.figure.set_layout_engine("none")  # everything is in its place now, for the PNG too
        return text.getvalue()

    def write(self, folder: Path) -> list[Path]:
        """Write the files of the picture into a folder, each whole or not at all; raises OSError."""
        svg, png = self.svg, io.BytesIO()
        with mpl.rc_context(dict(SETTINGS)):
            self.figure.set_dpi(_PNG_DPI)
            options = {"metadata": {"Software": None}, "pil_kwargs": {"compress_level": 3}}  # 6 takes twice the time
            FigureCanvasAgg(self.figure).print_png(png, **options)  # type: ignore[no-untyped-call]
        contents = {".svg": svg.encode(), ".png": png.getvalue(), ".csv": self.data.encode()}
        contents |= {ending: text.encode() for ending, text in self.more.items()}
        return [written(folder / f"{self.name}{ending}", content) for ending, content in contents.items()]

    def write_to(self, path: Path, *, command: str, answer: str = "") -> None:
        """Write the files as PATH.svg and so on, with the answer, if given, as PATH.json, and print their names on
        stderr behind the command's; raises OSError."""
        more = {".json": f"{answer}\n"} if answer else {}
        for file in replace(self, name=path.name, more=more).write(path.parent):
            print(f"{command}: {file}", file=sys.stderr)


@contextmanager
def canvas(width: float, height: float) -> Iterator[Figure]:
    """An empty figure of that many inches, to be drawn on within the context, in the style of all figures."""
    with mpl.rc_context(dict(SETTINGS)):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        yield figure


def panels(figure: Figure, count: int, *, columns: int, **options: Any) -> list[Axes]:
    """That many axes, row by row in at most so many columns; the rest of the last row stays empty."""
    columns = min(columns, count)
    grid = list(figure.subplots(-(-count // columns), columns, squeeze=False, **options).ravel())
    for axes in grid[count:]:
        axes.set_axis_off()
        axes.set_in_layout(False)
    return grid[:count]


def legend(figure: Figure, handles: Sequence[Artist], note: str = "") -> None:
    """One legend beneath all panels, in as many columns as have room, with a note over it."""
    room = figure.get_figwidth() / (0.55 + 0.066 * max(len(str(handle.get_label())) for handle in handles))
    rows = -(-len(handles) // max(1, int(room)))
    look: Mapping[str, Any] = {"fontsize": "small", "title": note or None, "title_fontsize": "x-small"}
    figure.legend(handles=handles, ncols=-(-len(handles) // rows), loc="outside lower center", **look)


def heading(figure: Figure, text: str) -> None:
    """The title over all panels, in as many lines as the figure's width needs."""
    figure.suptitle(_wrapped(text, figure, per_inch=12), fontsize="medium")


def explain(figure: Figure, text: str) -> None:
    """A few lines beneath all panels that say how the figure is read."""
    figure.supxlabel(_wrapped(text, figure, per_inch=18), fontsize=7.5, color=INK)


def _wrapped(text: str, figure: Figure, *, per_inch: float) -> str:
    """The lines of a text in at most as many letters as have room."""
    room = int(per_inch * figure.get_figwidth())
    return "\n".join(part for line in text.splitlines() for part in textwrap.wrap(line, room))


def log_ticks(axis: Axis) -> None:
    """Ticks of a logarithmic axis written out: 1, 2, 5, 10, 20 and so on."""
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter("{x:,.10g}")
    axis.set_minor_formatter(NullFormatter())


def table(rows: Iterable[Mapping[str, Any]]) -> str:
    """Rows, at least one, as the text of a CSV file; the columns are those of the first."""
    found, text = list(rows), io.StringIO()
    writer = csv.DictWriter(text, list(found[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(found)
    return text.getvalue()


def written(path: Path, content: bytes) -> Path:
    """Put a file in the place of the one of that name, if there is one, whole or not at all; raises OSError."""
    with replaced(path) as temporary:
        temporary.write_bytes(content)
    return path
