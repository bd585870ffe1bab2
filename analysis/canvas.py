"""Pictures and how they reach a folder: an SVG, a PNG and the data of each, the same bytes for the same picture.

What is drawn, and with which data, is for the modules of the single figures.
"""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from analysis.durable import replaced
from analysis.style import SETTINGS

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
            FigureCanvasAgg(self.figure).print_png(png, metadata={"Software": None})  # type: ignore[no-untyped-call]
        contents = {".svg": svg.encode(), ".png": png.getvalue(), ".csv": self.data.encode()}
        contents |= {ending: text.encode() for ending, text in self.more.items()}
        return [written(folder / f"{self.name}{ending}", content) for ending, content in contents.items()]


@contextmanager
def canvas(width: float, height: float) -> Iterator[Figure]:
    """An empty figure of that many inches, to be drawn on within the context, in the style of all figures."""
    with mpl.rc_context(dict(SETTINGS)):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        yield figure


def without_frame(axes: Axes) -> None:
    """Take everything away from axes but what is drawn in them."""
    axes.set_axis_off()
    axes.grid(False)


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Rows as the text of a CSV file."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return text.getvalue()


def written(path: Path, content: bytes) -> Path:
    """Put a file in the place of the one of that name, if there is one, whole or not at all; raises OSError."""
    with replaced(path) as temporary:
        temporary.write_bytes(content)
    return path
