"""Gherghescu et al. (HotNets '24, arXiv 2407.12819, figure 1c): what pausing the senders to a congested port does to a
bystander, a flow to another port; here over a WAN, by the size of the congested port's buffer."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from analysis.model.pauses import Link, simulate
from scenarios.papers.paper import Claim, Paper, Repeated, Settings
from scenarios.studies.harness import Column, Show, Table

if TYPE_CHECKING:
    from analysis.figures.output import Picture
    from scenarios.studies.programs.paused_ports import Case

SENDERS = 5  # the last one's flow is the bystander
HOST_BPS, WAN_BPS, DELAY_S = 2_000_000_000, 10_000_000_000, 5e-3
PRODUCT = WAN_BPS * 2 * DELAY_S / 8
"""The WAN's bandwidth-delay product, bytes: what arrives after the decision to pause."""
FRAME = 9014
NEAR = (5 * FRAME, 3 * FRAME)  # of what waits of one sender before the WAN: it is paused, and let send again
HOP_S = 1e-6
BIN_S, BINS, WARM = 10e-3, 60, 10  # times of means: from the end of the first WARM bins
PAUSES, FIFO, FAIR, PAUSED_TCP = "pauses", "TCP, fifo", "TCP, fair", "TCP, pauses"
BUFFERS = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
MEASURED: Mapping[str, Sequence[float]] = {
    **{PAUSES: (0.5, 1.0, 1.5, 2.0)},
    **{FIFO: (0.25, 1.0), FAIR: (0.25,), PAUSED_TCP: (1.0,)},
}
"""Buffers, in bandwidth-delay products, at which each scheme is measured."""
_SHOWN, _UNTIL = (1.0, 2.0), 30  # buffers and bins of the panel of times

Floats = npt.NDArray[np.float64]
Point = tuple[str, float]


@dataclass(frozen=True, kw_only=True)
class Flows:
    """The rates of all flows to the congested port together and of the bystander in each bin, [bins] bit/s, the most
    bytes that waited in the port, and the share of the frames sent to it that were lost."""

    congested_bps: Floats
    bystander_bps: Floats
    peak_bytes: float
    lost: float

    @property
    def means(self) -> tuple[float, float]:
        """The mean rates of the congested port and of the bystander after the first bins, bit/s."""
        return float(self.congested_bps[WARM:].mean()), float(self.bystander_bps[WARM:].mean())


@dataclass(frozen=True, kw_only=True)
class Line:
    """A point: mean rates of the bystander and of the congested port (bit/s), the longest queue of the latter in
    bandwidth-delay products, as the buffer and the threshold (None: nothing is paused), and the share of its frames
    that are lost, each predicted and measured; None if it is not."""

    scheme: str
    buffer: float
    xoff: float | None
    bystander_bps: float | None
    bystander_measured_bps: float | None
    congested_bps: float | None
    congested_measured_bps: float | None
    peak: float | None
    peak_measured: float | None
    lost: float | None
    lost_measured: float | None

    @property
    def share(self) -> float | None:
        """What the bystander gets of its sender's rate, measured if it was."""
        known = self.bystander_bps if self.bystander_measured_bps is None else self.bystander_measured_bps
        return None if known is None else known / HOST_BPS

    @property
    def congested_share(self) -> float:
        """What the congested port carries of its rate, measured if it was."""
        known = self.congested_bps if self.congested_measured_bps is None else self.congested_measured_bps
        return (known or 0.0) / HOST_BPS

    @property
    def lost_share(self) -> float:
        """The share of lost frames, measured if it was."""
        return (self.lost if self.lost_measured is None else self.lost_measured) or 0.0


def thresholds(buffer: float) -> tuple[float, float]:
    """Return at how many bytes a buffer (in bandwidth-delay products) pauses the WAN, and lets it send again.

    It pauses as late as it can without ever losing a frame, and at the first frame if it would lose some in any case.
    """
    xoff = max(1.0 * FRAME, (buffer - 1) * PRODUCT)
    return xoff, xoff / 2


@cache
def predicted(buffer: float) -> Flows:
    """Return the flows with pauses and a buffer of these bandwidth-delay products."""
    xoff, xon = thresholds(buffer)
    senders = [Link(rate_bps=HOST_BPS, delay_s=HOP_S, xoff_bytes=NEAR[0], xon_bytes=NEAR[1])] * SENDERS
    wan = Link(rate_bps=WAN_BPS, delay_s=DELAY_S, xoff_bytes=xoff, xon_bytes=xon)
    receivers = [Link(rate_bps=HOST_BPS, delay_s=HOP_S, buffer_bytes=buffer * PRODUCT)] * 2
    paths = [(sender, SENDERS, SENDERS + 1 + (sender == SENDERS - 1)) for sender in range(SENDERS)]
    seen = simulate([*senders, wan, *receivers], paths, frame_bytes=FRAME, bin_s=BIN_S, bins=BINS)
    arrived, lost = seen.arrived_bytes[:-1].sum(axis=0), float(seen.lost_bytes[:-1].sum())
    return Flows(
        congested_bps=8 * arrived / BIN_S,
        bystander_bps=8 * seen.arrived_bytes[-1] / BIN_S,
        peak_bytes=float(seen.peak_bytes[SENDERS + 1]),
        lost=lost / (lost + float(arrived.sum())),
    )


def case(scheme: str, buffer: float) -> "Case":
    """Return what the VM measures at a point."""
    from scenarios.studies.programs.paused_ports import Case

    xoff, xon = thresholds(buffer)
    frames = round(buffer * PRODUCT / FRAME)
    queue = f"bfifo limit {round(buffer * PRODUCT)}"
    return Case(
        over_tcp=scheme != PAUSES,
        senders=SENDERS,
        host_bps=HOST_BPS,
        wan_bps=WAN_BPS,
        delay_ns=round(DELAY_S * 1e9),
        queue=f"fq nopacing limit {frames} flow_limit {frames}" if scheme == FAIR else queue,
        xoff_bytes=round(xoff) if scheme in (PAUSES, PAUSED_TCP) else None,
        xon_bytes=round(xon),
        near=(NEAR[0] * SENDERS, NEAR[1] * SENDERS),
        bins=BINS,
        bin_ns=round(BIN_S * 1e9),
    )


def measured(points: Sequence[Point], *, jobs: int) -> Iterator[tuple[Point, Flows]]:
    """Measure points, `jobs` VMs at a time; yield each when it has ended. Raises VMError, and RunError if one fails."""
    from scenarios.studies.rank_programs import each_ended, printed_in_vm

    cases = [case(*point) for point in points]
    runs = [partial(printed_in_vm, "paused_ports", json.dumps(asdict(one))) for one in cases]
    for number, seen in each_ended(runs, jobs=jobs):
        congested, bystander = (8e9 * np.array(sent) / cases[number].bin_ns for sent in seen["receivers"])
        lost_bytes, sent_bytes = FRAME * seen["dropped"], sum(seen["receivers"][0])
        flows = Flows(
            congested_bps=congested,
            bystander_bps=bystander,
            peak_bytes=seen["peak_bytes"],
            lost=lost_bytes / (lost_bytes + sent_bytes),
        )
        yield points[number], flows


def _repeat(settings: Settings, show: Show) -> Repeated:
    points = [(scheme, buffer) for scheme, buffers in MEASURED.items() for buffer in buffers]
    found = dict[Point, Flows]()
    if settings.measures:
        show(f"0 of {len(points)} points are measured")
        for point, flows in measured(points, jobs=settings.jobs):
            found[point] = flows
            show(f"{len(found)} of {len(points)} points are measured")
    show("predicting")
    lines = [_line(point, found.get(point)) for point in dict.fromkeys([*((PAUSES, one) for one in BUFFERS), *points])]
    lines = [line for line in lines if line.share is not None]
    return Repeated(
        tables=[_table(lines)],
        claims=[*_claims({(line.scheme, line.buffer): line for line in lines})],
        lines=[asdict(line) | {"share": line.share} for line in lines],
        picture=lambda: _picture(lines, found),
    )


def _line(point: Point, found: Flows | None) -> Line:
    scheme, buffer = point
    flows = predicted(buffer) if scheme == PAUSES else None
    congested, bystander = (None, None) if scheme == PAUSED_TCP else (float(HOST_BPS), float(HOST_BPS))
    if flows is not None:
        congested, bystander = flows.means
    seen = (None, None) if found is None else found.means
    return Line(
        scheme=scheme,
        buffer=buffer,
        xoff=thresholds(buffer)[0] / PRODUCT if scheme in (PAUSES, PAUSED_TCP) else None,
        bystander_bps=bystander,
        bystander_measured_bps=seen[1],
        congested_bps=congested,
        congested_measured_bps=seen[0],
        peak=None if flows is None else flows.peak_bytes / PRODUCT,
        peak_measured=None if found is None else found.peak_bytes / PRODUCT,
        lost=None if flows is None else flows.lost,
        lost_measured=None if found is None else found.lost,
    )


def _claims(of: Mapping[Point, Line]) -> Iterator[Claim]:
    one, two, half = of[PAUSES, 1.0], of[PAUSES, 2.0], of[PAUSES, 0.5]
    is_measured = one.bystander_measured_bps is not None  # all of these are, or none
    for says, found, neutral, is_ours in (
        (
            "with pauses a bystander gets N of its rate (a buffer of one bandwidth-delay product)",
            *(one.share or 0.0, 1.0, False),
        ),
        ("so it does with a buffer of two", two.share or 0.0, 1.0, True),
        ("with TCP and no pauses it gets N of its rate", of[FIFO, 1.0].share or 0.0, 1.0, True),
        ("with a buffer of one, the congested port itself carries N of its rate", one.congested_share, 1.0, True),
        ("with half of that, pauses come too late, and N of its frames are lost", half.lost_share, 0.0, True),
    ):
        yield Claim(says=says, found=found, neutral=neutral, rises=False, is_measured=is_measured, is_ours=is_ours)
    if (PAUSED_TCP, 1.0) in of:
        yield Claim(
            says="over TCP with pauses, a buffer of one leaves it N of its rate",
            found=of[PAUSED_TCP, 1.0].share or 0.0,
            neutral=1.0,
            is_measured=True,
            is_ours=True,
        )


def _table(lines: Sequence[Line]) -> Table[Line]:
    why, alone = "some points are measured", "of TCP only the rates without pauses are predicted"

    def cell(value: float | None, form: str) -> str:
        return "" if value is None else format(value, form)

    columns = [
        Column[Line]("scheme", lambda line: line.scheme, left=True),
        Column[Line]("buffer", lambda line: f"{line.buffer:g}"),
        Column[Line]("pauses at", lambda line: cell(line.xoff, ".2f")),
        Column[Line]("bystander, Gbit/s", lambda line: cell(_giga(line.bystander_bps), ".3f"), why=alone),
        Column[Line]("measured", lambda line: cell(_giga(line.bystander_measured_bps), ".3f"), why=why),
        Column[Line]("congested port", lambda line: cell(_giga(line.congested_bps), ".3f"), why=alone),
        Column[Line]("measured", lambda line: cell(_giga(line.congested_measured_bps), ".3f"), why=why),
        Column[Line]("longest queue", lambda line: cell(line.peak, ".3f"), why=alone),
        Column[Line]("measured", lambda line: cell(line.peak_measured, ".3f"), why=why),
        Column[Line]("lost", lambda line: cell(line.lost, ".2%"), why=alone),
        Column[Line]("measured", lambda line: cell(line.lost_measured, ".2%"), why=why),
    ]
    notes = [
        "",
        f"Buffers, thresholds and queues are in bandwidth-delay products of the WAN, {PRODUCT / 1e6:g} MB each.",
        f"Rates are means from {WARM * BIN_S * 1e3:g} to {BINS * BIN_S * 1e3:g} ms; each port has "
        f"{HOST_BPS / 1e9:g} Gbit/s.",
    ]
    return Table(columns, lines, notes=notes)


def _giga(value_bps: float | None) -> float | None:
    return None if value_bps is None else value_bps / 1e9


def _picture(lines: Sequence[Line], found: Mapping[Point, Flows]) -> "Picture":
    from analysis.figures.plain import Panel, Spot, panels

    times, sizes = list[Spot](), list[Spot]()
    for buffer in _SHOWN:
        name, at_ms = f"pauses, buffer {buffer:g}", 1e3 * BIN_S * (0.5 + np.arange(BINS))
        kinds = [(predicted(buffer).bystander_bps, False)]
        kinds += [(found[PAUSES, buffer].bystander_bps, True)] if (PAUSES, buffer) in found else []
        for rates_bps, is_measured in kinds:
            pairs = zip(at_ms[:_UNTIL].tolist(), rates_bps[:_UNTIL].tolist(), strict=True)
            times += [Spot(name, ms, bps / 1e9, is_measured=is_measured) for ms, bps in pairs]
    if (FIFO, 1.0) in found:
        rates_bps = found[FIFO, 1.0].bystander_bps[:_UNTIL]
        instants_ms = (1e3 * BIN_S * (0.5 + number) for number in range(_UNTIL))
        pairs = zip(instants_ms, rates_bps.tolist(), strict=True)
        times += [Spot(FIFO, ms, bps / 1e9, is_measured=True) for ms, bps in pairs]
    for line in lines:
        of_both = [
            (f"bystander, {line.scheme}", line.bystander_bps, line.bystander_measured_bps),
            ("congested port, pauses", line.congested_bps, line.congested_measured_bps),
        ]
        for name, known, seen in of_both[: 2 if line.scheme == PAUSES else 1]:
            sizes += [Spot(name, line.buffer, known / 1e9)] if known is not None else []
            sizes += [Spot(name, line.buffer, seen / 1e9, is_measured=True)] if seen is not None else []
    shown = [
        Panel(spots=times, x="time (ms)", y="rate (Gbit/s)", title="the bystander over time"),
        Panel(spots=sizes, x="buffer (bandwidth-delay products)", y="mean rate (Gbit/s)", title="means by buffer"),
    ]
    return panels(shown, name="pauses")


PAPER = Paper(
    reference="Gherghescu et al., I've Got 99 Problems But FLOPS Ain't One, HotNets '24 (arXiv 2407.12819)",
    result="what pausing the senders to a congested port does to a flow to another port (figure 1c), over a WAN",
    assumed=[
        "only the subject of figure 1c was at hand, neither its setting nor its numbers: all points are ours",
        f"{SENDERS - 1} flows into a port of {HOST_BPS / 1e9:g} Gbit/s and a bystander into another one, from "
        f"{SENDERS} hosts with as much each, over a WAN of {WAN_BPS / 1e9:g} Gbit/s and {2e3 * DELAY_S:g} ms of round "
        "trip, which is not congested",
        "senders with pauses send as fast as they may, and nothing is sent again; a port pauses as late as it can "
        "without a loss, and lets the other end send again at half of that",
        "measured with the kernel's queues, whose lengths a program reads each 50 us; a pause is a change of a port's "
        "rate, as the kernel has no pause frames",
    ],
    repeat=_repeat,
)
