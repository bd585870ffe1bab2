"""Atlas (arXiv 2411.14458): what parallel TCP connections carry over a WAN, by distance and loss, and an AllReduce.

The formulas are those of a window (RFC 7323, section 1.1: what is under way in a round trip) and of CUBIC under random
loss (RFC 9438, equation 6, or its Reno-friendly window, sqrt(3 / (2 p)) segments, where that is larger).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import ceil, sqrt
from typing import TYPE_CHECKING

from scenarios.papers.paper import Claim, Paper, Repeated, Settings
from scenarios.studies.harness import Column, Show, Table

if TYPE_CHECKING:
    from analysis.figures.output import Picture
    from scenarios.spec.scenario import Scenario

LINK_BPS = 5e9
RECEIVE_BUFFER, PAYLOAD_SHARE = 6 << 20, 2 / 3
"""Linux's largest buffer by default (tcp_rmem), and the share of it that full frames of 9,014 bytes leave for payload
in the VM's kernel: TCP measures it (`scaling_ratio`), and announces no more."""
SEGMENT = 8948
ALLREDUCE_BYTES = 20_000_000
ROUND_TRIPS_MS, CONNECTIONS, LOSSES = (10, 20, 50, 100, 200), (1, 4, 16, 64), (0.0, 1e-5, 1e-4)
MEASURED: Mapping[tuple[int, float], Sequence[int]] = {
    (10, 0.0): (1, 4),
    (50, 0.0): (1, 4, 16),
    (200, 0.0): (1, 4, 16, 64),
    (50, 1e-4): (1, 4),
}
"""What is measured: numbers of connections by round trip (ms) and loss."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """A point: throughput (bit/s) and the time of the AllReduce (s), by formulas and measured (None if it is not). The
    AllReduce has no formula where packets are lost."""

    round_trip_ms: int
    loss: float
    connections: int
    formula_bps: float
    measured_bps: float | None
    formula_s: float | None
    measured_s: float | None

    @property
    def bps(self) -> float:
        """The throughput as measured, else by the formula."""
        return self.formula_bps if self.measured_bps is None else self.measured_bps


def window_bytes(round_trip_s: float, loss: float) -> float:
    """Return what one connection has under way on average: its receiver's window in whole segments, or, if less, the
    congestion window of CUBIC at this share of lost segments."""
    announced = float(RECEIVE_BUFFER * PAYLOAD_SHARE // SEGMENT * SEGMENT)
    if not loss:
        return announced
    cubic: float = 1.054 * (round_trip_s / loss) ** 0.75
    return min(announced, SEGMENT * max(cubic, sqrt(1.5 / loss)))


def throughput_bps(round_trip_s: float, loss: float, connections: int) -> float:
    """Return what connections carry together, up to the link's rate."""
    return min(LINK_BPS, connections * window_bytes(round_trip_s, loss) * 8 / round_trip_s)


def allreduce_s(round_trip_s: float, connections: int) -> float:
    """Return the time of an AllReduce of two ranks without losses: two exchanges of half the buffer, each of which
    waits for a round trip, or for the link, after every window but the last."""
    share, window = ALLREDUCE_BYTES / 2 / connections, window_bytes(round_trip_s, 0)
    waits = ceil(share / window) - 1
    on_link_s = connections * 8 / LINK_BPS
    return 2 * (round_trip_s / 2 + waits * max(round_trip_s, window * on_link_s) + (share - waits * window) * on_link_s)


def _repeat(settings: Settings, show: Show) -> Repeated:
    found = dict[tuple[int, float, int], tuple[float, float]]()
    if settings.measures:
        found |= measured(MEASURED, settings.seed, jobs=settings.jobs, show=show)
    lines = [
        _line(ms, loss, count, found.get((ms, loss, count)))
        for loss in LOSSES
        for ms in ROUND_TRIPS_MS
        for count in CONNECTIONS
    ]
    columns = [
        Column[Line]("round trip (ms)", lambda line: str(line.round_trip_ms)),
        Column[Line]("loss", lambda line: f"{line.loss:g}"),
        Column[Line]("connections", lambda line: str(line.connections)),
        Column[Line]("Gbit/s by formula", lambda line: f"{line.formula_bps / 1e9:.3f}"),
        Column[Line]("measured", lambda line: _cell(line.measured_bps, 1e-9), why="some points are measured"),
        Column[Line](
            "AllReduce (ms) by formula", lambda line: _cell(line.formula_s, 1e3), why="it has none for losses"
        ),
        Column[Line]("measured", lambda line: _cell(line.measured_s, 1e3), why="some points are measured"),
    ]
    return Repeated(
        tables=[Table(columns, lines)],
        claims=[*_claims(lines)],
        lines=[asdict(line) for line in lines],
        picture=lambda: _picture(lines),
    )


def _line(ms: int, loss: float, connections: int, found: tuple[float, float] | None) -> Line:
    bps, took_s = found or (None, None)
    return Line(
        round_trip_ms=ms,
        loss=loss,
        connections=connections,
        formula_bps=throughput_bps(ms / 1e3, loss, connections),
        measured_bps=bps,
        formula_s=None if loss else allreduce_s(ms / 1e3, connections),
        measured_s=took_s,
    )


def measured(
    points: Mapping[tuple[int, float], Sequence[int]], seed: int, *, jobs: int, show: Show
) -> Iterator[tuple[tuple[int, float, int], tuple[float, float]]]:
    """Measure numbers of connections by round trip (ms) and loss, `jobs` VMs at a time: yield round trip, loss and
    number, with the throughput (bit/s) and the time of the AllReduce (s)."""
    from scenarios.studies.rank_programs import each_printed

    places = [*points.items()]
    show(f"0 of {len(places)} round trips and losses are measured")
    configs = [_configuration(*place, counts, seed) for place, counts in places]
    for ended, (number, (lines, *_)) in enumerate(each_printed(configs, jobs=jobs), 1):
        show(f"{ended} of {len(places)} round trips and losses are measured")
        place, counts = places[number]
        for count, line in zip(counts, lines, strict=True):
            yield (*place, count), (line["bps"], line["allreduce_s"])


def _configuration(ms: int, loss: float, counts: Sequence[int], seed: int) -> "Scenario":
    from scenarios.studies.rank_programs import program, two_hosts

    # A window opens within some round trips; a connection that loses needs several times between two losses.
    warm_s, counted_s = (20.0, 20.0) if loss else (max(0.25, 12 * ms / 1e3), 5 * ms / 1e3)
    cases = [f"{count}:{warm_s:g}:{counted_s:g}" for count in counts]
    values = program("parallel_connections", RECEIVE_BUFFER, ALLREDUCE_BYTES, *cases) | {
        **{"fabric.buffer": "1 GB", "fabric.wan_loss": loss, "transport.queue": "fifo", "transport.line_rate": False},
    }
    return two_hosts(wan_bps=LINK_BPS, wan_delay_s=ms / 2e3, intra_rate="100 Gbit/s", seed=seed, values=values)


def _claims(lines: Sequence[Line]) -> Iterator[Claim]:
    of = {(line.round_trip_ms, line.loss, line.connections): line for line in lines}

    def took_s(connections: int) -> float:
        line = of[200, 0.0, connections]
        return (line.formula_s or 0.0) if line.measured_s is None else line.measured_s

    is_measured = of[200, 0.0, 1].measured_bps is not None  # all of these are, or none
    yield Claim(
        says="one connection carries N times less over 200 ms than over 10 ms",
        found=of[10, 0.0, 1].bps / of[200, 0.0, 1].bps,
        neutral=1,
        is_measured=is_measured,
    )
    yield Claim(
        says="over 200 ms, 16 connections carry N times as much as one",
        found=of[200, 0.0, 16].bps / of[200, 0.0, 1].bps,
        neutral=1,
        is_measured=is_measured,
    )
    yield Claim(
        says="over 200 ms, 64 connections carry N times what four carry over 10 ms",
        found=of[200, 0.0, 64].bps / of[10, 0.0, 4].bps,
        is_measured=is_measured,
        is_ours=True,
    )
    yield Claim(
        says="an AllReduce of 20 MB over 200 ms is N times faster with 16 connections than with one",
        found=took_s(1) / took_s(16),
        neutral=1,
        is_measured=is_measured,
    )
    yield Claim(
        says="over 50 ms, a loss of 1e-4 leaves N of what one connection carries",
        found=of[50, 1e-4, 1].bps / of[50, 0.0, 1].bps,
        is_measured=is_measured,
        is_ours=True,
    )


def _cell(value: float | None, factor: float) -> str:
    return "" if value is None else f"{value * factor:,.3f}"


def _picture(lines: Sequence[Line]) -> "Picture":
    from analysis.figures.plain import Spot, picture

    spots = []
    for line in lines:
        if line.loss in (0.0, max(LOSSES)):
            name = "1 connection" if line.connections == 1 else f"{line.connections} connections"
            name += f", loss {line.loss:g}" * bool(line.loss)
            spots.append(Spot(name, line.round_trip_ms, line.formula_bps / 1e9))
            if line.measured_bps is not None:
                spots.append(Spot(name, line.round_trip_ms, line.measured_bps / 1e9, is_measured=True))
    return picture(spots, name="atlas", x="round trip (ms)", y="throughput (Gbit/s)", log_x=True)


PAPER = Paper(
    reference="Palak et al., Atlas: geo-distributed language model training (arXiv 2411.14458)",
    result="throughput of 1 to 64 TCP connections by round trip and loss, and an AllReduce over them",
    assumed=[
        "a WAN link of 5 Gbit/s between two ranks, whose fifo queue holds 1 GB; CUBIC; frames of 9,014 bytes",
        "a receiver's buffer of 6 MiB, Linux's largest by default, of which two thirds are payload in these frames",
        "only the paper's abstract and summaries of it were at hand: several TCP connections are what it uses against "
        "the distance; all points are ours",
    ],
    repeat=_repeat,
)
