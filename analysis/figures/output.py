"""Pictures and their files: an SVG, a PNG and the data of each, byte for byte the same for the same picture.

Also the parts that figures share: the canvas, a grid of panels, the legend and CSV. The modules of the single figures
decide what is drawn.
"""

import csv
import io
import math
import os
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis, XAxis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import LogLocator, NullFormatter

from analysis.figures.style import INK, SETTINGS
from analysis.results.writer import atomic_replacement

_PNG_DPI = 200
_LEGEND_ROWS = 2  # of a legend, and as many lines of its note, for which figures have room
_LEGEND_ROW, _NOTE_LINE = 0.17, 0.12  # inches of each further one, at these sizes of text
_LEGEND_PT, _NOTE_PT, _EXPLAINED_PT, _HEADING_PT = 7.5, 6.25, 7.5, 9.0
_HEADING_ROWS, _HEADING_ROW = 2, 0.15  # lines of a title for which figures have room, and inches of each further one
_COLUMN, _PAGE = 3.3, 7.2  # inches of a column of a paper, and of a page
_LEGIBLE_PT = 5.0
_SHORT = 8.0  # ratio of the ends of a logarithmic axis below which 1, 2, 5 may label it at one or two places
_OF_NUMBER = re.compile(r"(?<=\d) (?=[A-Za-zµ%])|(?<=\w) (?=[\d.]+(?:,|$))")
"""The blank between a number and its unit, or between a key and its number."""
_SURELY_FREE = 0.5  # of a column's width: a shorter title has room
_MARGIN = 2  # pixels between a title and the figure's edge
_PLAIN = ",.10g"  # the form of a number at a tick
_DIGIT, _BLANK, _LINE = (
    0.64,
    0.7,
    1.3,
)  # the width of a digit and of a blank, and the height of a line, in sizes of text
_RAISED = {ord(plain): raised for plain, raised in zip("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹", strict=True)}
_SAMPLE, _CHARACTER = 0.55, 0.066  # inches of a legend's sample with its margins, and of a character of its labels

ON_WHITE: Mapping[str, Any] = MappingProxyType(
    {"boxstyle": "square,pad=0.12", "facecolor": "white", "edgecolor": "none", "alpha": 0.9}
)
"""The background (`bbox`) of a label that lines may cross: without it the label looks struck through."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Picture:
    """A figure: the name of its files, its caption (a sentence), the Matplotlib figure and its data as CSV text.

    `more` maps endings of further files, such as ".json", to their text.
    """

    name: str
    caption: str
    figure: Figure
    data: str
    more: Mapping[str, str] = field(default_factory=dict)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for another process: everything but the figure, which is needed for drawing alone."""
        return {**self.__dict__, "svg": self.svg, "figure": None}

    @cached_property
    def svg(self) -> str:
        """The figure as the text of an SVG file."""
        text = io.StringIO()
        with mpl.rc_context(dict(SETTINGS)):
            # As savefig does, without its first pass, which draws nothing.
            FigureCanvasSVG(self.figure).print_svg(  # type: ignore[no-untyped-call]
                text, metadata={"Date": None, "Title": self.caption}
            )
        self.figure.set_layout_engine("none")  # the layout is done, and the PNG takes the same
        return text.getvalue()

    def write(self, folder: Path) -> list[Path]:
        """Write the files of the picture into a folder, each atomically, and return their paths; raises OSError."""
        svg, png = self.svg, io.BytesIO()
        with mpl.rc_context(dict(SETTINGS)):
            self.figure.set_dpi(_PNG_DPI)
            options = {"metadata": {"Software": None}, "pil_kwargs": {"compress_level": 3}}  # 6 takes twice as long
            FigureCanvasAgg(self.figure).print_png(png, **options)  # type: ignore[no-untyped-call]
        contents = {".svg": svg.encode(), ".png": png.getvalue(), ".csv": self.data.encode()}
        contents |= {ending: text.encode() for ending, text in self.more.items()}
        return [write_file(folder / f"{self.name}{ending}", content) for ending, content in contents.items()]

    def write_to(self, path: Path, *, command: str, answer: str = "") -> None:
        """Write the files as PATH.svg and so on, and `answer`, if given, as PATH.json; raises OSError.

        Their paths are printed on stderr after the command's name.
        """
        more = {".json": f"{answer}\n"} if answer else {}
        for file in replace(self, name=path.name, more=more).write(path.parent):
            print(f"{command}: {file}", file=sys.stderr)


class _Figure(Figure):
    """A figure that a notebook shows, without a command before and in the style of all figures."""

    def _repr_png_(self) -> bytes:
        png = io.BytesIO()
        with mpl.rc_context(dict(SETTINGS)):
            FigureCanvasAgg(self).print_png(png)  # type: ignore[no-untyped-call]
        return png.getvalue()


@contextmanager
def canvas(width: float, height: float) -> Iterator[Figure]:
    """Yield an empty figure of this size in inches; within the context Matplotlib has the style of all figures."""
    with mpl.rc_context(dict(SETTINGS)):
        figure = _Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        yield figure
        _enlarge_texts(figure)
        _wrap_titles(figure)


def panels(figure: Figure, count: int, *, columns: int, **options: Any) -> list[Axes]:
    """Return `count` axes, row by row in at most `columns` columns; the rest of the last row stays empty."""
    columns = min(columns, count)
    grid = list(figure.subplots(-(-count // columns), columns, squeeze=False, **options).ravel())
    for axes in grid[count:]:
        axes.set_axis_off()
        axes.set_in_layout(False)
    return grid[:count]


def legend(figure: Figure, handles: Sequence[Artist], note: str = "") -> None:
    """Add one legend below all panels, in as many columns as have room, with a note above it, or the note alone.

    Labels and notes that are wider than the figure are wrapped: Matplotlib would cut them off on both sides. The figure
    becomes higher by what more than `_LEGEND_ROWS` lines take, so that its panels keep their height.
    """
    size_pt, note_pt = legible_pt(figure, _LEGEND_PT), legible_pt(figure, _NOTE_PT)
    larger, note_larger = size_pt / _LEGEND_PT, note_pt / _NOTE_PT
    note = _wrapped(note, figure, per_inch=18 / note_larger)
    sample, character = _SAMPLE * larger, _CHARACTER * larger
    room = int((figure.get_figwidth() - sample) / character)
    labels = [textwrap.fill(str(handle.get_label()), room, break_on_hyphens=False) for handle in handles]
    longest = max((len(line) for label in labels for line in label.splitlines()), default=0)
    rows = -(-len(handles) // max(1, int(figure.get_figwidth() / (sample + character * longest))))
    lines = rows + sum(label.count("\n") for label in labels)  # a legend with wrapped labels has a single column
    notes = 1 + note.count("\n") if note else 0
    more = max(0.0, larger * lines - _LEGEND_ROWS) * _LEGEND_ROW
    more += max(0.0, note_larger * notes - _LEGEND_ROWS) * _NOTE_LINE
    figure.set_figheight(figure.get_figheight() + more)
    look: dict[str, Any] = {"fontsize": size_pt, "title": note or None, "title_fontsize": note_pt}
    look |= {"handles": handles, "ncols": -(-len(handles) // max(1, rows)), "loc": "outside lower center"}
    figure.legend(**look | ({"labels": labels} if labels else {}))  # Matplotlib takes no empty list of labels


def add_note(figure: Figure, sentence: str) -> None:
    """Add a sentence to what a drawn figure says below its panels, unless it says it already."""
    below = figure.legends[0].get_title() if figure.legends else None
    told = figure.get_supxlabel() if below is None else below.get_text()
    if sentence in told.replace("\n", " "):
        return
    with mpl.rc_context(dict(SETTINGS)):
        if below is None:
            figure.supxlabel("")
            explain(figure, f"{told}\n{sentence}".strip())
            return
        size_pt = legible_pt(figure, _NOTE_PT)
        lines = _wrapped(sentence, figure, per_inch=18 * _NOTE_PT / size_pt)
        more = (lines.count("\n") + 1) * _NOTE_LINE * size_pt / _NOTE_PT
        figure.set_figheight(figure.get_figheight() + more)
        figure.legends[0].set_title(f"{told}\n{lines}".strip())
        figure.legends[0].get_title().set_fontsize(size_pt)


def legible_pt(figure: Figure, size_pt: float) -> float:
    """Return the size of small text, at least this one, that is still legible where a paper has the figure: in a
    column, or if it is wider than a page, on a page."""
    width = figure.get_figwidth()
    return max(size_pt, _LEGIBLE_PT * width / (_COLUMN if width <= _PAGE else _PAGE))


def heading(figure: Figure, text: str) -> None:
    """Add a title above all panels, wrapped to the width of the figure."""
    size_pt = legible_pt(figure, _HEADING_PT)
    room = int(12 * _HEADING_PT / size_pt * figure.get_figwidth())
    title = "\n".join(balanced(line, room) for line in text.splitlines())
    more = max(0, title.count("\n") + 1 - _HEADING_ROWS) * _HEADING_ROW * size_pt / _HEADING_PT
    figure.set_figheight(figure.get_figheight() + more)
    figure.suptitle(title, fontsize=size_pt)


def explain(figure: Figure, text: str) -> None:
    """Add a few lines below all panels that explain how to read the figure, wrapped to its width."""
    size_pt = legible_pt(figure, _EXPLAINED_PT)
    text = _wrapped(text, figure, per_inch=18 * _EXPLAINED_PT / size_pt)
    figure.set_figheight(figure.get_figheight() + max(0, text.count("\n") - 2) * _NOTE_LINE * size_pt / _NOTE_PT)
    figure.supxlabel(text, fontsize=size_pt, color=INK)


def balanced(text: str, room: int) -> str:
    """Wrap a title to the fewest lines of so many characters, which are about equally long: none has a single word that
    is left over. A number stays on the line of its unit or key."""
    glued = _OF_NUMBER.sub("\u00a0", text)
    fewest = textwrap.wrap(glued, room, break_on_hyphens=False)
    longest_word = max(map(len, glued.split(" ")))
    for narrower in range(room - 1, longest_word - 1, -1):
        lines = textwrap.wrap(glued, narrower, break_on_hyphens=False)
        if len(lines) > len(fewest):
            break
        fewest = lines
    return "\n".join(fewest).replace("\u00a0", " ")


def _wrapped(text: str, figure: Figure, *, per_inch: float) -> str:
    """Wrap each line of a text to the width of the figure, at `per_inch` characters per inch, to about equal parts."""
    room = int(per_inch * figure.get_figwidth())
    return "\n".join(balanced(line, room) for line in text.splitlines())


def _enlarge_texts(figure: Figure) -> None:
    """Enlarge all texts that would not be legible where a paper has the figure."""
    least_pt = legible_pt(figure, 0.0)
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            sizes_pt = [float(label.get_fontsize()) for label in axis.get_ticklabels()]
            if sizes_pt and min(sizes_pt) < least_pt:
                axis.set_tick_params(labelsize=least_pt)  # also of ticks that a later layout makes
    for text in figure.findobj(Text):
        if isinstance(text, Text) and float(text.get_fontsize()) < least_pt:
            text.set_fontsize(least_pt)


def _wrap_titles(figure: Figure) -> None:
    """Wrap the titles of panels that would reach past the figure's edges or into the next column's room: a layout makes
    room for their height alone."""
    long = {title: title.get_text() for axes in figure.axes for title in _titles(axes) if _is_long(figure, axes, title)}
    if not long:
        return
    for title in long:
        title.set_text("x")  # a long one would narrow the panels
    figure.draw_without_rendering()
    rooms = {title: _room(figure, axes, title) for axes in figure.axes for title in _titles(axes) if title in long}
    for title, text in long.items():
        title.set_text(text)
        width = title.get_window_extent().width
        while width > rooms[title] and (words := _narrower(title.get_text(), rooms[title] / width)) != title.get_text():
            title.set_text(words)
            width = title.get_window_extent().width


def _titles(axes: Axes) -> list[Text]:
    """Return the titles of a panel that have a text: left, in the middle, right."""
    return [one for one in axes.get_children() if isinstance(one, Text) and one not in axes.texts and one.get_text()]


def _is_long(figure: Figure, axes: Axes, title: Text) -> bool:
    """Return whether a title is so long that only a layout shows whether there is room for it."""
    spec = axes.get_subplotspec()
    columns = 1 if spec is None else spec.get_gridspec().ncols / len(spec.colspan)
    return title.get_window_extent().width > _SURELY_FREE * figure.bbox.width / columns


def _room(figure: Figure, axes: Axes, title: Text) -> float:
    """Return the width (pixels) that a title may have where the panels are: up to the middle between two panels."""
    own, edge = axes.get_window_extent(), figure.bbox.width - _MARGIN
    others = [one.get_window_extent() for one in figure.axes if one is not axes and one.get_in_layout()]
    beside = [one for one in others if one.y0 < own.y1 and one.y1 > own.y0]
    right = min([edge - own.x1, *((one.x0 - own.x1 - _MARGIN) / 2 for one in beside if one.x0 >= own.x1)])
    left = min([own.x0 - _MARGIN, *((own.x0 - one.x1 - _MARGIN) / 2 for one in beside if one.x1 <= own.x0)])
    if title.get_horizontalalignment() == "left":
        return float(own.width + right)
    return float(own.width + 2 * min(left, right))


def _narrower(text: str, share: float) -> str:
    """Return a text whose longest line is wrapped to this share of its length, at most to words."""
    lines = text.splitlines()
    longest = max(range(len(lines)), key=lambda at: len(lines[at]))
    room = max(1, int(len(lines[longest]) * share))
    lines[longest : longest + 1] = textwrap.wrap(lines[longest], room, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines)


def colour_bar(
    figure: Figure,
    grid: Sequence[Axes],
    scale: ScalarMappable,
    label: str,
    *,
    is_below: bool = False,
    is_open: bool = False,
) -> None:
    """Add a bar that explains a colour scale, next to all panels or below them; there are values beyond the end of one
    that `is_open`."""
    look: dict[str, Any] = {"shrink": 0.85, "pad": 0.01, "aspect": 60 if is_below else 34}
    bar = figure.colorbar(
        scale, ax=list(grid), location="bottom" if is_below else "right", extend="max" if is_open else "neither", **look
    )
    bar.set_label(label, fontsize=8)
    bar.ax.tick_params(labelsize=8)
    bar.outline.set_visible(False)


def log_ticks(axis: Axis) -> None:
    """Label a logarithmic axis with plain numbers: 1, 2, 5, 10, 20 and so on, all digits of a short one, or powers of
    ten below 0.01.

    The data must have been drawn before. Labels below 0.01 are long: a decade has no room for three of them. Other
    numbers whose labels have no room have a tick alone.
    """
    least, most = axis.get_data_interval()
    is_small, is_short = least < 0.01, most < _SHORT * least
    digits = range(1, 10) if is_short else (1, 2, 5)
    axis.set_major_locator(LogLocator() if is_small else _Spaced(subs=digits))
    axis.set_major_formatter(_power_of_ten if is_small else f"{{x:{_PLAIN}}}")
    axis.set_minor_formatter(NullFormatter())


class _Spaced(LogLocator):
    """The ticks of a logarithmic axis whose labels have room beside each other; round numbers come before others."""

    def __call__(self) -> list[float]:
        """Return the numbers that are labelled, in their order."""
        every, axis = np.asarray(super().__call__(), dtype=np.float64), self.axis
        if not isinstance(axis, Axis):
            return list(map(float, every))
        least, most = sorted(axis.get_view_interval())
        shown = every[(every >= least) & (every <= most)]
        if not shown.size:  # the base class leaves out all numbers of a long axis but powers of ten
            powers = range(math.ceil(math.log10(least)), math.floor(math.log10(most)) + 1)
            shown = np.array([10.0**power for power in powers])
        box, size_pt = axis.axes.bbox, float(axis.get_tick_params().get("labelsize", SETTINGS["font.size"]))
        is_x = isinstance(axis, XAxis)
        length_pt = (box.width if is_x else box.height) * 72 / axis.axes.figure.dpi
        taken: dict[float, tuple[float, float]] = {}
        for number in sorted(shown.tolist(), key=_roundness):
            half_pt = size_pt * (0.5 * (_DIGIT * len(f"{number:{_PLAIN}}") + _BLANK) if is_x else _LINE / 2)
            at_pt = math.log(number / least) / math.log(most / least) * length_pt
            if all(at_pt + half_pt <= begin or end <= at_pt - half_pt for begin, end in taken.values()):
                taken[number] = at_pt - half_pt, at_pt + half_pt
        return sorted(taken)


def _roundness(number: float) -> int:
    return "152374689".index(f"{number:e}"[0])


def _power_of_ten(value: float, _place: object) -> str:
    """Return a label such as 10⁻⁵, without mathtext, which figures do not interpret (`style`)."""
    return "10" + str(round(math.log10(value))).translate(_RAISED)


def csv_text(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return rows, at least one, as the text of a CSV file with the columns of the first row."""
    all_rows, text = list(rows), io.StringIO()
    writer = csv.DictWriter(text, list(all_rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(all_rows)
    return text.getvalue()


def write_file(path: Path, content: bytes) -> Path:
    """Write a file atomically, replacing an existing one, and return its path; raises OSError.

    Another process may write the same file at the same time.
    """
    with atomic_replacement(path, writer=str(os.getpid())) as temporary:
        temporary.write_bytes(content)
    return path
