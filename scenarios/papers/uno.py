"""Uno (SC '25, arXiv 2510.15802, figure 3): flows within a site and between sites into one host, each kind with a
congestion control of its own.

The parameters are those of the public artifact, github.com/spcl/Uno_SC25, artifact_scripts/fig3_run_all.py.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from analysis.statistics.fairness import jain_index
from scenarios.papers.paper import Claim, Paper, Repeated, Settings
from scenarios.studies.harness import Column, Show, Table

if TYPE_CHECKING:
    from analysis.figures.output import Picture
    from scenarios.spec.scenario import Scenario

FLOW_BYTES = 1_000_000_000
RATE_BPS, WAN_DELAY_S, HOP_S = 100e9, 886.5e-6, 1e-6
BIN_S = 10e-3
LOCALS, REMOTES = (1, 2, 3, 4), tuple(range(5, 13))  # GPUs; GPU 0 receives
MIXED, ALONE = "4 local, 4 remote", "8 remote"
CASES: Mapping[str, tuple[int, ...]] = {ALONE: REMOTES, MIXED: (*LOCALS, *REMOTES[:4])}
_THEIRS = ("bbr",)
ACROSS = (*_THEIRS, "cubic")
_HOPS_LOCAL, _HOPS_REMOTE = 2, 6  # cables within sites
BUFFER, MARKS = "1 MB", "250 kB"
_ROOM = "800 Gbit/s"  # of links other than the hosts': for all flows at once

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a run has shown, by flow: when each further 1/n of its bytes had arrived, [flows, n] s, its congestion
    control, and the bytes that TCP sent again."""

    arrived_s: Floats
    controls: tuple[str, ...]
    retransmitted_bytes: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Line:
    """A case with a congestion control across: the time with fair shares, and what was measured, None without.

    `jain` is Jain's index of the flows' bytes by their completion times, `jain_bins` its mean over bins of BIN_S, until
    the first flow has ended. Times are in s.
    """

    case: str
    across: str
    fair_s: float
    jain: float | None = None
    jain_bins: float | None = None
    mean_s: float | None = None
    last_s: float | None = None
    local_s: float | None = None
    remote_s: float | None = None
    retransmitted: float | None = None


def fair_s(case: str, flow_bytes: int) -> float:
    """Return when the last flow of a case has ended if all have equal shares of the receiver's cable, in s."""
    delay_s = max(_HOPS_REMOTE * HOP_S + WAN_DELAY_S if gpu in REMOTES else _HOPS_LOCAL * HOP_S for gpu in CASES[case])
    return 8 * flow_bytes * len(CASES[case]) / RATE_BPS + delay_s


def rates_bps(arrived_s: Floats, flow_bytes: int, bin_s: float = BIN_S) -> Floats:
    """Return the rate at which each flow arrives in bins from time 0 on, [flows, bins] bit/s; bytes between two known
    instants arrive evenly."""
    edges_s = bin_s * np.arange(np.ceil(arrived_s.max() / bin_s) + 1)
    portions = np.linspace(0, flow_bytes, arrived_s.shape[1] + 1)
    bytes_at = [np.interp(edges_s, np.append(0, flow_s), portions) for flow_s in arrived_s]
    rates: Floats = 8 * np.diff(np.array(bytes_at), axis=1) / bin_s
    return rates


def jain_of_bins(arrived_s: Floats, flow_bytes: int, bin_s: float = BIN_S) -> Floats:
    """Return Jain's index of the flows' rates in each whole bin until the first flow has ended, [bins]."""
    together = rates_bps(arrived_s, flow_bytes, bin_s)[:, : int(arrived_s[:, -1].min() / bin_s)]
    return np.array([jain_index(rates) for rates in together.T])


def line_of(case: str, across: str, measured: Measured, flow_bytes: int) -> Line:
    """Return the line of a measured case."""
    ended_s, is_remote = measured.arrived_s[:, -1], np.isin(CASES[case], REMOTES)
    return Line(
        case=case,
        across=across,
        fair_s=fair_s(case, flow_bytes),
        jain=jain_index(1 / ended_s),
        jain_bins=float(jain_of_bins(measured.arrived_s, flow_bytes).mean()),
        mean_s=float(ended_s.mean()),
        last_s=float(ended_s.max()),
        local_s=None if is_remote.all() else float(ended_s[~is_remote].mean()),
        remote_s=float(ended_s[is_remote].mean()),
        retransmitted=sum(measured.retransmitted_bytes) / (flow_bytes * len(ended_s)),
    )


def configuration(case: str, across: str, flow_bytes: int, seed: int) -> "Scenario":
    """Return the configuration of a case whose flows are of `flow_bytes`."""
    from scenarios.api import scenario
    from scenarios.studies.rank_programs import program

    fabric: dict[str, object] = {"gpus": [1 + len(LOCALS), len(REMOTES)], "leaves": 1, "spines": 1, "border_routers": 1}
    values = {f"fabric.{key}": value for key, value in fabric.items()} | {
        **{"fabric.grain": "physical", "fabric.buffer": BUFFER, "transport.queue": "fifo"},
        **{"conditions.intra_rate": _ROOM, "conditions.wan_rate": _ROOM},
        **{"conditions.links": {"access": {"rate": f"{RATE_BPS / 1e9:g} Gbit/s"}}},
        **{"conditions.intra_delay": f"{HOP_S * 1e6:g} us", "conditions.wan_delay": f"{WAN_DELAY_S * 1e6:g} us"},
        **{"transport.congestion_control": {"intra": "dctcp", "wan": across}, "transport.ecn_threshold": MARKS},
        **{"transport.line_rate": False, "transport.rto_min": "10 ms"},
        **program("flows", flow_bytes),
        "program.ranks": [0, *CASES[case]],
        **{"run.modes": ["base"], "run.seed": seed},
    }
    return scenario("paper", values)


def measure(case: str, across: str, *, flow_bytes: int = FLOW_BYTES, seed: int = 1) -> Measured:
    """Run a case in a VM; raises VMError if the VM cannot run, and RunError if the flows do not end."""
    from scenarios.studies.rank_programs import printed_by_ranks

    return _measured(printed_by_ranks(configuration(case, across, flow_bytes, seed)))


def _measured(printed: Sequence[Sequence[Any]]) -> Measured:
    """Return what the ranks of a case have printed (`programs.flows`)."""
    (arrived,), *sent = printed
    return Measured(
        arrived_s=np.array([arrived[str(rank)] for rank in range(1, len(sent) + 1)]) / 1e9,
        controls=tuple(one["control"] for (one,) in sent),
        retransmitted_bytes=tuple(one["retransmitted_bytes"] for (one,) in sent),
    )


def _repeat(settings: Settings, show: Show) -> Repeated:
    places = [(case, across) for case in CASES for across in ACROSS]
    if not settings.measures:
        predicted = [Line(case=case, across=across, fair_s=fair_s(case, FLOW_BYTES)) for case, across in places]
        return Repeated(tables=[_table(predicted)], claims=[], lines=[*map(asdict, predicted)], picture=None)
    from scenarios.studies.rank_programs import each_printed

    configs, found = [configuration(*place, FLOW_BYTES, settings.seed) for place in places], dict[int, Measured]()
    show(f"0 of {len(places)} cases measured")
    for number, printed in each_printed(configs, jobs=settings.jobs):
        found[number] = _measured(printed)
        show(f"{len(found)} of {len(places)} cases measured")
    measured = {place: found[number] for number, place in enumerate(places)}
    lines = [line_of(*place, one, FLOW_BYTES) for place, one in measured.items()]
    return Repeated(
        tables=[_table(lines)],
        claims=[*_claims(lines)],
        lines=[*map(asdict, lines)],
        picture=lambda: _picture(measured),
    )


def _claims(lines: Sequence[Line]) -> Iterator[Claim]:
    found = {(line.case, line.across): line.jain or 0.0 for line in lines}
    for across in ACROSS:
        yield Claim(
            says=f"local and remote flows share unfairly ({across}): Jain's index is below that of remote ones by",
            found=found[ALONE, across] - found[MIXED, across],
            because=f"{across} across shares unequally among remote flows alone, too",
            is_measured=True,
            is_ours=across not in _THEIRS,
        )


def _table(lines: Sequence[Line]) -> Table[Line]:
    def cell(name: str, form: Callable[[float], str]) -> Callable[[Line], str]:
        def text(line: Line) -> str:
            value: float | None = getattr(line, name)
            return "" if value is None else form(value)

        return text

    def milliseconds(value_s: float) -> str:
        return f"{value_s * 1e3:,.1f}"

    columns = [
        Column[Line]("case", lambda line: line.case, left=True),
        Column[Line]("across", lambda line: line.across, left=True),
        Column[Line]("Jain", cell("jain", "{:.3f}".format)),
        Column[Line]("Jain, bins", cell("jain_bins", "{:.3f}".format)),
        Column[Line]("mean, ms", cell("mean_s", milliseconds)),
        Column[Line]("local, ms", cell("local_s", milliseconds)),
        Column[Line]("remote, ms", cell("remote_s", milliseconds)),
        Column[Line]("last, ms", cell("last_s", milliseconds)),
        Column[Line]("fair, ms", cell("fair_s", milliseconds)),
        Column[Line]("sent again", cell("retransmitted", lambda share: f"{100 * share:.2g} %")),
    ]
    notes = [
        "",
        f"Jain: of bytes by completion times; bins: mean over {BIN_S * 1e3:g} ms each, until the first flow has ended.",
        "mean, local, remote, last: completion times; fair: the last one with equal shares of the receiver's cable.",
    ]
    return Table(columns, lines, notes=notes)


def _picture(measured: Mapping[tuple[str, str], Measured]) -> "Picture":
    from analysis.figures.flow_rates import Panel, picture

    shown = []
    for (case, across), one in measured.items():
        rates = rates_bps(one.arrived_s, FLOW_BYTES)
        kinds = ["remote" if gpu in REMOTES else "local" for gpu in CASES[case]]
        times_s = BIN_S * np.arange(rates.shape[1], dtype=np.float64)
        jain = jain_of_bins(one.arrived_s, FLOW_BYTES)
        shown.append(
            Panel(case=case, variant=f"{across} across", times_s=times_s, rates_bps=rates, kinds=kinds, jain=jain)
        )
    title = "Flows of 1 GB into one host at 100 Gbit/s, dctcp within the site"
    return picture(shown, fair_bps=RATE_BPS / len(LOCALS + REMOTES[:4]), title=title)


PAPER = Paper(
    reference="Uno, SC '25 (arXiv 2510.15802)",
    result="rates and fairness of local and remote flows into one host (figure 3)",
    assumed=[
        "the claim is the abstract's, which has no number for it; that it is tried with cubic, too, is ours",
        "886.5 us is one way: the public simulator has it on a link of each direction, and twice in a round trip",
        "the kernel's dctcp stands for MPRDMA, its bbr or cubic for the simulator's BBR; Uno and Gemini are not here",
        f"queues of {BUFFER} mark frames above {MARKS}; the simulator's at random, more from there to 750 kB",
        "links other than hosts' have room for all flows, where the simulator sprays over a fat tree; a hop takes 1 us",
        "connections start in Linux's slow start; TCP's least timeout is 10 ms, where Linux's default is 200 ms",
    ],
    repeat=_repeat,
)
