"""The table of a run's points, as the terminal prints it."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from analysis.results.columns import REFEREES
from analysis.statistics.bound_words import MARK, is_mixed
from analysis.statistics.contests import BASELINE
from analysis.statistics.fidelity import Fifo
from analysis.statistics.intervals import Interval
from analysis.statistics.number_words import bracketed, estimate, quoted
from scenarios.engines.prediction import is_bound_of_shared
from scenarios.experiment.point_results import ConfigResult, PointResult
from scenarios.spec.labels import labels_in_table
from scenarios.spec.scenario import Scenario
from scenarios.text_table import told
from topologies.errors import list_all


def table_of(results: Sequence[ConfigResult]) -> tuple[list[tuple[str, ...]], list[str]]:
    """Return the rows of the table of points, the heading first, and a line for each reason for an empty cell. What the
    settings of all rows share is left out of them if it is long: `common_of` has it."""
    points = [(result, point) for result in results for point in result.points]
    columns, whys = list[list[str]](), list[str]()
    rows = [f"{result.engine} {point.mode}" for result, point in points]
    own = dict(zip([result.index for result in results], _told_apart(results)[1], strict=True))
    for one in (*_COLUMNS, _gain_column(points), *_OPTIONAL_COLUMNS):
        if one.name == _SETTING:
            columns.append([_SETTING, *(own[result.index] for result, _ in points)])
            continue
        whys_here = (one.why(*each) for each in points)
        cells, reasons = told([one.cell(*each) for each in points], one.name, whys_here, rows)
        columns.append([one.heading or one.name, *_marked(one, cells, points)])
        whys += reasons
    return list(zip(*columns, strict=True)), whys


def common_of(results: Sequence[ConfigResult]) -> str:
    """Return what the settings of all rows share, in words; "" if each row has the whole of its own."""
    return _told_apart(results)[0]


def _told_apart(results: Sequence[ConfigResult]) -> tuple[str, list[str]]:
    return labels_in_table([result.config for result in results])


def _marked(column: "_Column", cells: list[str], points: Sequence[tuple[ConfigResult, PointResult]]) -> list[str]:
    """Return the cells of a column, with a mark at lower bounds in the model of shared links beside others."""
    bounded = bounds_of(points)
    if column.heading != _BOUND or not is_mixed(bounded.values()):
        return cells
    return [f"{MARK * bounded.get(result.index, False)}{cell}" for cell, (result, _) in zip(cells, points, strict=True)]


def bounds_of(points: Iterable[tuple[ConfigResult, PointResult]]) -> dict[int, bool]:
    """Return for each configuration with a lower bound whether it is the one in the model of shared links."""
    return {result.index: is_bound_of_shared(result.config) for result, point in points if point.bound_s is not None}


def _gain(point: PointResult) -> str:
    """Return the gain of a point over its baseline; "" for a point without one."""
    if point.gain is None:
        return ""
    return BASELINE if point.over is None else share(point.gain)


def share(gain: Interval) -> str:
    """Return a gain in percent, with its interval."""
    return f"{estimate(gain, 100, 1)}% {bracketed(gain, 100, 1)}"


def _ms_of(value_s: float | None) -> str:
    return "" if value_s is None else f"{value_s * 1e3:,.3f}"


def _fifo_cell(cell: Callable[[Fifo], str]) -> "_Cell":
    return lambda _, point: "" if point.fifo is None else cell(point.fifo)


def _referee_cell(name: str) -> "_Cell":
    return lambda _, point: _ms_of(point.referees_s.get(name))


_Cell = Callable[[ConfigResult, PointResult], str]


_BOUND = "lower bound (ms)"
_SETTING = "setting"


@dataclass(frozen=True)
class _Column:
    """A column of the table of points: its short name, the text of its cells, why one is empty, and its heading, if
    that is not the name."""

    name: str
    cell: _Cell
    why: _Cell = lambda _result, _point: ""
    heading: str = ""


def _always(why: str) -> _Cell:
    return lambda _result, _point: why


_COLUMNS: Sequence[_Column] = (
    _Column("engine", lambda result, _: result.engine),
    _Column(_SETTING, lambda result, _: result.config.label),
    _Column("mode", lambda _, point: point.mode),
    _Column("collectives", lambda _, point: f"{point.summary.collectives:,}"),
    _Column(
        "mean",
        lambda _, point: f"{estimate(point.summary.mean_s, 1e3, 3)} {bracketed(point.summary.mean_s, 1e3, 3)}",
        heading="mean, 95 % interval (ms)",
    ),
    _Column(
        "lower bound",
        lambda _, point: _ms_of(point.bound_s),
        lambda result, _: f"none is known for the kind{_kinds(result.config)}",
        _BOUND,
    ),
    _Column("total (s)", lambda _, point: f"{point.summary.total_s.value:,.3f}"),
)
"""The columns of every table of points."""


_OF_FIFO = _always("not measured with FIFO queues")


_OPTIONAL_COLUMNS: Sequence[_Column] = (
    _Column(
        "budget",
        lambda _, point: "" if point.budget is None else point.budget.words(point.summary.collectives),
        _always("without collective.budget"),
    ),
    *(
        _Column(
            one.heading,
            _referee_cell(one.name),
            _always("the referee is not defined there"),
        )
        for one in REFEREES
    ),
    _Column(
        "mean without faults",
        lambda _, point: _ms_of(point.mean_without_s),
        lambda _, point: "not all of its faults have a known cost" if point.faults else "it has no faults",
        "mean without faults (ms)",
    ),
    _Column(
        "reconfiguration",
        lambda _, point: "" if point.changes is None else point.changes.words,
        lambda result, _: _why_no_change(result),
        "reconfiguration (ms), how often",
    ),
    _Column("drops", _fifo_cell(lambda fifo: f"{fifo.drops:,}"), _OF_FIFO),
    _Column("retransmitted (MB)", _fifo_cell(lambda fifo: fifo.retransmitted_mb), _OF_FIFO),
    _Column("transfers, measured/predicted", _fifo_cell(lambda fifo: fifo.transfers_took), _OF_FIFO),
    _Column(
        "least fair link, Jain's index",
        _fifo_cell(lambda fifo: "" if fifo.fairness is None else f"{fifo.fairness_link} {fifo.fairness:.2f}"),
        lambda result, point: _OF_FIFO(result, point) if point.fifo is None else "no link was shared",
    ),
)


def _gain_column(points: Sequence[tuple[ConfigResult, PointResult]]) -> _Column:
    over = list(dict.fromkeys(point.over for _, point in points if point.over is not None))
    heading = f"gain over {quoted(over[0]) if len(over) == 1 else 'the baseline'}, 95 % interval"
    return _Column("gain", lambda _, point: _gain(point), lambda _, point: _why_no_gain(point), heading)


def _why_no_gain(point: PointResult) -> str:
    return "no baseline is finished there" if point.over is None else "no collective is also the baseline's"


def _kinds(config: Scenario) -> str:
    """Return the kinds of what a round waits for, "s training and requests", or of the collective, " trace"."""
    awaited = [job.collective(config.collective).kind for job in config.jobs if not job.is_background]
    kinds = [*dict.fromkeys(awaited)] or [config.collective.kind]
    return f"{'s' * (len(kinds) > 1)} {list_all(kinds)}"


def no_time_line(results: Sequence[ConfigResult]) -> str:
    """Return what 0.000 under reconfiguration is, beside empty cells there; "" if it has none."""
    changes = [point.changes for result in results for point in result.points if point.changes is not None]
    has_zero = any(one.count and _ms_of(one.mean_s) == _ms_of(0.0) for one in changes)
    return f"{_ms_of(0.0)} under reconfiguration: paths alone were changed, which takes no virtual time" * has_zero


def _why_no_change(result: ConfigResult) -> str:
    if result.engine == "model" and not result.config.control.counted:
        return "the model counts no time for changes (control.counted = false)"
    return "nothing was changed"
