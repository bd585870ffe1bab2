"""A lossy long haul (SDR-RDMA, arXiv 2505.05366): an AllReduce by TCP, selective repeat and an erasure code.

Two ranks exchange halves of the buffer twice, both ways at once. An exchange by datagrams is over when the last of them
is there: one that is lost arrives a round trip later, or is restored by the code when its block is over. As losses are
independent, the distribution of an exchange's time is a product over datagrams or groups, and its mean is exact but for
requests that are lost together.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import sqrt
from typing import TYPE_CHECKING

from scenarios.papers.paper import Claim, Paper, Repeated, Settings
from scenarios.studies.harness import Column, Show, Table

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from analysis.figures.output import Picture
    from scenarios.spec.scenario import Scenario

RATE_BPS = 10e9
CHUNKS, PAYLOAD = 960, 8896
"""Datagrams of an exchange, and the bytes of each that count."""
FRAME = PAYLOAD + 9 + 8 + 20 + 14
"""With the heads of the programs, of UDP, of IP and of Ethernet."""
FULL_FRAME, SEGMENT = 9014, 8948
"""A full frame and its payload in TCP, in which the rates of links are told."""
BLOCK, PARITY = 32, 8
"""Datagrams of a block of the code, and those that follow it: each the XOR of every eighth."""
PATIENCE = 1.25
"""Round trips of silence after which something is asked for again."""
TCP, REPEAT, CODE = "TCP", "selective repeat", "erasure code"
PROGRAMS: Mapping[str, tuple[str, Sequence[int]]] = {
    REPEAT: ("selective_repeat", ()),
    CODE: ("erasure_code", (BLOCK, PARITY)),
}
"""The program of each scheme, and its first arguments."""
ROUND_TRIPS_MS, LOSSES = (10, 50, 100), (0.0, 1e-5, 1e-4, 1e-3, 1e-2)
MEASURED = ((10, 1e-3), (50, 0.0), (50, 1e-4), (50, 1e-3), (50, 1e-2))
"""The round trips (ms) and losses that are measured, with each scheme."""
COUNT = 20

Point = tuple[str, int, float]
"""A scheme, a round trip (ms) and a share of lost frames."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """A point: the mean time of an AllReduce (s), predicted (None for TCP, which the model has without losses only) and
    measured, with the standard error of the measured mean; None if it is not measured."""

    scheme: str
    round_trip_ms: int
    loss: float
    predicted_s: float | None
    measured_s: float | None
    error_s: float | None

    @property
    def slowdown(self) -> float | None:
        """The time, measured if it was, by that of an AllReduce that loses and adds nothing."""
        found_s = self.predicted_s if self.measured_s is None else self.measured_s
        return None if found_s is None else found_s / ideal_s(self.round_trip_ms / 1e3)


def ideal_s(round_trip_s: float) -> float:
    """Return the time of an AllReduce without losses."""
    return 2 * (round_trip_s / 2 + CHUNKS * _each_s())


def predicted_s(scheme: str, round_trip_s: float, loss: float) -> float | None:
    """Return the mean time of an AllReduce with this share of lost frames; None for TCP with losses."""
    import numpy as np

    if scheme == TCP:
        return None if loss else ideal_s(round_trip_s)
    if scheme == REPEAT:
        ends_s, chance = (1.0 + np.arange(CHUNKS)) * _each_s(), loss
    else:
        blocks = np.repeat(1.0 + np.arange(CHUNKS // BLOCK), PARITY)
        ends_s = blocks * (BLOCK + PARITY) * _each_s()
        whole = BLOCK // PARITY
        # A group is asked for if two of it are lost, or more.
        chance = 1 - (1 - loss) ** (whole + 1) - (whole + 1) * loss * (1 - loss) ** whole
    return 2 * float(_mean_of_last(ends_s + round_trip_s / 2, chance, loss, round_trip_s))


def _mean_of_last(arrive_s: "npt.NDArray[np.floating]", chance: float, loss: float, round_trip_s: float) -> float:
    """Return the mean time of the last of parts that arrive at these times, or, with a chance each, later: by a round
    trip, and after more of patience each time that the request or its answer is lost."""
    import numpy as np

    lost_again = 1 - (1 - loss) ** 2
    later_s = [0.0, *(round_trip_s * (1 + again * (1 + PATIENCE)) for again in range(6))]
    chances = np.array([1 - chance, *(chance * lost_again**again * (1 - lost_again) for again in range(6))])
    chances /= chances.sum()
    # The distribution changes only where a part may arrive, so that its mean is a sum over these instants.
    at_s = np.unique(np.add.outer(later_s, arrive_s))
    below = np.ones(len(at_s))
    for each in np.unique(arrive_s):
        parts = int((arrive_s == each).sum())
        is_there = np.searchsorted(np.add(later_s, each), at_s, side="right")
        below *= np.concatenate([[0.0], chances.cumsum()])[is_there] ** parts
    return float(at_s[-1] - (below[:-1] * np.diff(at_s)).sum())


def _each_s() -> float:
    """Return how long a link takes for a datagram."""
    return FRAME / FULL_FRAME * SEGMENT * 8 / RATE_BPS


def _repeat(settings: Settings, show: Show) -> Repeated:
    measured = dict[Point, tuple[float, float]]()
    points = [(scheme, *point) for point in MEASURED for scheme in (TCP, REPEAT, CODE)] if settings.measures else []
    show(f"0 of {len(points)} points are measured")
    for point, times in times_s(points, seed=settings.seed, jobs=settings.jobs):
        measured[point] = mean_and_error(times)
        show(f"{len(measured)} of {len(points)} points are measured")
    lines = [
        _line(scheme, ms, loss, measured.get((scheme, ms, loss)))
        for ms in ROUND_TRIPS_MS
        for scheme in (TCP, REPEAT, CODE)
        for loss in LOSSES
        if scheme != TCP or (scheme, ms, loss) in measured or not loss
    ]
    why = "some points are measured"
    columns = [
        Column[Line]("scheme", lambda line: line.scheme, left=True),
        Column[Line]("round trip (ms)", lambda line: str(line.round_trip_ms)),
        Column[Line]("loss", lambda line: f"{line.loss:g}"),
        Column[Line](
            "AllReduce (ms), predicted", lambda line: _ms(line.predicted_s), why="TCP is predicted without losses only"
        ),
        Column[Line]("measured", lambda line: _ms(line.measured_s), why=why),
        Column[Line]("standard error", lambda line: _ms(line.error_s), why=why),
        Column[Line]("slowdown", lambda line: "" if line.slowdown is None else f"{line.slowdown:.2f}"),
    ]
    return Repeated(
        tables=[Table(columns, lines, title=f"Means of {COUNT} AllReduces where they are measured")],
        claims=[*_claims({(line.scheme, line.round_trip_ms, line.loss): line for line in lines})],
        lines=[asdict(line) | {"slowdown": line.slowdown} for line in lines],
        picture=lambda: _picture(lines),
    )


def _line(scheme: str, ms: int, loss: float, found: tuple[float, float] | None) -> Line:
    mean_s, error_s = found or (None, None)
    predicted = predicted_s(scheme, ms / 1e3, loss)
    return Line(scheme=scheme, round_trip_ms=ms, loss=loss, predicted_s=predicted, measured_s=mean_s, error_s=error_s)


def times_s(
    points: Sequence[Point], *, seed: int, jobs: int, count: int = COUNT
) -> Iterator[tuple[Point, list[float]]]:
    """Measure: yield each point with the times of its AllReduces. `jobs` programs run at a time, and then TCP's points
    one after another."""
    from scenarios.api import run
    from scenarios.studies.rank_programs import each_printed, program

    programs = [point for point in points if point[0] != TCP]
    configs = []
    for scheme, ms, loss in programs:
        name, first = PROGRAMS[scheme]
        values = program(name, *first, CHUNKS, PAYLOAD, count, ms / 1e3, PATIENCE * ms / 1e3)
        configs.append(_scenario(ms, loss, seed, values))
    for number, (printed, *_) in each_printed(configs, jobs=jobs):
        yield programs[number], [*map(float, printed)]
    values = {"collective.kind": "allreduce", "collective.pieces": 1, "collective.count": count}
    values |= {"collective.size": f"{2 * CHUNKS * PAYLOAD} B", "collective.emulated": count}
    for point in points:
        if point[0] == TCP:
            rows = run(_scenario(*point[1:], seed, values), "emulation", progress=lambda done, points: None)
            yield point, [*map(float, rows["completion_s"])]


def _scenario(ms: int, loss: float, seed: int, values: Mapping[str, object]) -> "Scenario":
    from scenarios.studies.rank_programs import two_hosts
    from topologies.units import format_rate

    # Hosts are as fast as the WAN, so that a burst waits in their ports and not in the WAN's queue.
    lossy = {"fabric.buffer": "1 GB", "fabric.wan_loss": loss, "transport.queue": "fifo"}
    return two_hosts(
        wan_bps=RATE_BPS,
        wan_delay_s=ms / 2e3,
        seed=seed,
        intra_rate=format_rate(round(RATE_BPS)),
        values=lossy | dict(values),
    )


def mean_and_error(times: Sequence[float]) -> tuple[float, float]:
    """Return the mean of times and its standard error."""
    mean = sum(times) / len(times)
    variance = sum((one - mean) ** 2 for one in times) / (len(times) - 1)
    return mean, sqrt(variance / len(times))


def _claims(of: Mapping[tuple[str, int, float], Line]) -> Iterator[Claim]:
    def ratio(one: tuple[str, int, float], other: tuple[str, int, float]) -> float:
        return (of[one].slowdown or 0.0) / (of[other].slowdown or 1.0)

    is_measured = of[REPEAT, 50, 1e-3].measured_s is not None  # all of these are, or none
    for says, one, other, is_ours in (
        (
            "over 50 ms, a loss of 1e-3 makes an AllReduce by selective repeat N times slower",
            *((REPEAT, 50, 1e-3), (REPEAT, 50, 0.0), False),
        ),
        (
            "over 50 ms instead of 10, losses of 1e-3 slow selective repeat N times as much",
            *((REPEAT, 50, 1e-3), (REPEAT, 10, 1e-3), False),
        ),
        (
            "over 50 ms with a loss of 1e-3, an erasure code is N times faster than selective repeat",
            *((REPEAT, 50, 1e-3), (CODE, 50, 1e-3), False),
        ),
        (
            "without losses the code's overhead makes it N times slower than selective repeat",
            *((CODE, 50, 0.0), (REPEAT, 50, 0.0), True),
        ),
        (
            "over 50 ms with a loss of 1e-3, TCP takes N times as long as selective repeat",
            *((TCP, 50, 1e-3), (REPEAT, 50, 1e-3), True),
        ),
    ):
        if one in of:  # TCP with losses is measured alone
            yield Claim(says=says, found=ratio(one, other), neutral=1, is_measured=is_measured, is_ours=is_ours)


def _ms(value_s: float | None) -> str:
    return "" if value_s is None else f"{value_s * 1e3:,.3f}"


def _picture(lines: Sequence[Line]) -> "Picture":
    from analysis.figures.plain import Spot, picture

    spots = []
    for line in lines:
        if line.loss:  # which is on a logarithmic axis
            name, ideal = f"{line.scheme}, {line.round_trip_ms} ms", ideal_s(line.round_trip_ms / 1e3)
            if line.predicted_s is not None:
                spots.append(Spot(name, line.loss, line.predicted_s / ideal))
            if line.measured_s is not None:
                spots.append(Spot(name, line.loss, line.measured_s / ideal, is_measured=True))
    return picture(spots, name="long-haul", x="share of lost frames", y="slowdown of an AllReduce", log_x=True)


PAPER = Paper(
    reference="Khalilov et al., SDR-RDMA (arXiv 2505.05366)",
    result="slowdown of an AllReduce by loss and distance, with three ways to repair losses",
    assumed=[
        f"two ranks, 10 Gbit/s, {2 * CHUNKS * PAYLOAD / 1e6:.1f} MB, datagrams of {PAYLOAD:,} bytes over UDP, no RDMA",
        "the code is XOR of 4 of 32 datagrams, 8 per block; what it cannot restore is asked for",
        "TCP is the kernel's, with CUBIC, whose connections begin at line rate",
        "only the paper's abstract was at hand: depending on loss, distance and bandwidth, selective repeat can be "
        "inefficient, and an erasure code is an alternative; all points are ours",
    ],
    repeat=_repeat,
)
