"""Decoupled DiLoCo in `run.py diloco`: its utilisation by bandwidth, and its goodput while sites die and return.

The syncer is apart from the sites, each of which has a link of its own to it, as long and as fast as the WAN path
between two sites of the scenario. Both are predicted by `analysis.model.decoupled`.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from analysis.model.decoupled import Decoupled, availability_goodput, drawn_outages, trained
from scenarios.studies.harness import Column, Table, check_range, quantity

if TYPE_CHECKING:
    from scenarios.spec.scenario import Scenario
    from topologies.command_line import CommandParser

METHOD = "Decoupled, fewer bits"
_ROUNDS = 5
_LOADED_BITS = 16  # of a value of the model that a site loads when it is back
_MAX_SUMS, _OUTAGES = 2_000_000, 2_000
"""Most sums that are simulated, and how many outages there should be in all."""


@dataclass(frozen=True, kw_only=True)
class Failing:
    """The goodput with a quorum while sites die and return: predicted, by the binomial formula, and the part of all
    sites' time that they computed in vain."""

    quorum: int
    goodput: float
    binomial: float
    lost: float


def add_options(parser: "CommandParser") -> None:
    """Add the options of decoupled DiLoCo."""
    add = parser.add_argument
    add("--sites", type=int, default=2, metavar="M", help="sites of decoupled DiLoCo (default %(default)s)")
    add("--quorum", type=int, metavar="K", help="sites that a sum waits for (default: all but one)")
    add("--grace", metavar="TIME", help="how long a sum waits for further sites (default: not at all)")
    add("--between", metavar="TIME", help="mean time that a site runs until it dies, such as 10 h")
    add("--outage", metavar="TIME", help="mean time until it is back")


def check(options: argparse.Namespace) -> None:
    """Raise ValueError for options that are not allowed."""
    check_range(options, 2, 64, "sites")
    check_range(options, 1, options.sites, "quorum")
    for name in ("grace", "between", "outage"):
        _time_s(options, name)
    if (options.between is None) != (options.outage is None):
        lacking, has = ("--between", "--outage") if options.between is None else ("--outage", "--between")
        raise ValueError(f"{lacking} is missing, which {has} needs; allowed: both or none")


def quorum_of(options: argparse.Namespace) -> int:
    """Return the quorum of the options."""
    return int(options.sites - 1 if options.quorum is None else options.quorum)


def words(options: argparse.Namespace) -> dict[str, object]:
    """Return the options that describe the method, for JSON."""
    grace = {} if options.grace is None else {"grace": options.grace}
    return {"sites": options.sites, "quorum": quorum_of(options), **grace}


def utilisation(options: argparse.Namespace, scenario: "Scenario") -> dict[int, float]:
    """Return the utilisation by bandwidth, bit/s, of sites that have no failures."""
    return {rate: _steady(spec) for rate, spec in _by_rate(options, scenario)}


def failing(options: argparse.Namespace, scenario: "Scenario") -> list[Failing]:
    """Return the goodput at the highest bandwidth while sites die and return, with all sites as quorum and with the
    quorum of the options; empty without failures."""
    if options.between is None:
        return []
    between_s, outage_s = (_time_s(options, name) for name in ("between", "outage"))
    _, spec = max(_by_rate(options, scenario))
    due_s = spec.every * spec.step_s[0] / spec.fragments
    until_s = min(_MAX_SUMS * due_s, _OUTAGES * (between_s + outage_s) / options.sites)
    until_s = max(until_s, _ROUNDS * spec.fragments * due_s)
    found = []
    for quorum in dict.fromkeys((options.sites, quorum_of(options))):
        expected = availability_goodput(options.sites, quorum, between_s / (between_s + outage_s))
        horizon_s, own = 2 * until_s, replace(spec, quorum=quorum)
        while True:  # the training takes longer by what it stands for, and no outage may be missing
            outages = drawn_outages(
                options.sites, horizon_s, between_s=between_s, outage_s=outage_s, seed=scenario.run.seed
            )
            of = trained(own, max(1, round(expected * until_s / due_s)), outages)
            if max(of.time_s) <= horizon_s:
                break
            horizon_s *= 4
        lost = sum(lost_s / time_s for lost_s, time_s in zip(of.lost_s, of.time_s, strict=True)) / options.sites
        found.append(Failing(quorum=quorum, goodput=of.goodput, binomial=expected, lost=lost))
    return found


def table(options: argparse.Namespace, lines: Sequence[Failing]) -> Table[Failing]:
    """Return the table of the goodput under failures."""
    columns = [
        Column[Failing]("quorum", lambda line: f"{line.quorum} of {options.sites}", left=True),
        Column[Failing]("goodput", lambda line: f"{100 * line.goodput:.1f} %"),
        Column[Failing]("binomial", lambda line: f"{100 * line.binomial:.1f} %"),
        Column[Failing]("computed in vain", lambda line: f"{100 * line.lost:.1f} %"),
    ]
    title = f"Goodput of {options.sites} sites that die every {options.between}, for {options.outage}; predicted"
    return Table(columns, lines, title=title, notes=["", *_notes()])


def _notes() -> Iterator[str]:
    yield "Binomial: the sites compute whenever the quorum is there, and lose nothing."


def _time_s(options: argparse.Namespace, name: str) -> float:
    """Return the time of an option in s, 0 if it is not given; raises ValueError."""
    from topologies.units import SPAN, parse_delay_s

    text = getattr(options, name)
    return 0.0 if text is None else quantity("run.py diloco", f"--{name}", text, partial(parse_delay_s, kind=SPAN))


def _by_rate(options: argparse.Namespace, scenario: "Scenario") -> Iterator[tuple[int, Decoupled]]:
    """Yield each bandwidth of a scenario, bit/s, with the training of its sites at mean rates."""
    from controller.routing.wan_path_choice import Router
    from hosts.collectives.training import VALUE_BITS
    from scenarios.policies.conditions import conditions_of

    training, grace_s = scenario.training, _time_s(options, "grace")
    for config in scenario.configurations():
        conditions = conditions_of(config)
        (path, *_), router = conditions.fabric.paths_between[0, 1], Router(conditions.fabric, conditions.delays_s)
        rate_bps = float(conditions.mean_bps[[*conditions.fabric.edge_links(0, 1, path.index)]].min())
        delay_s = float(router.delay_s(path.index, 0, 1))

        def takes_s(bits: float, rate_bps: float = rate_bps, delay_s: float = delay_s) -> float:
            return delay_s + bits / rate_bps

        values = training.gradient_bytes * 8 / VALUE_BITS
        yield (
            round(max(config.conditions.wan_rate_bps)),
            Decoupled(
                step_s=[training.micro_batches * (training.forward_s + training.backward_s)] * options.sites,
                quorum=quorum_of(options),
                every=training.every,
                fragments=training.fragments,
                overlap=training.overlap,
                up_s=takes_s(values * training.bits / training.fragments),
                down_s=takes_s(values * training.bits / training.fragments),
                grace_s=grace_s,
                load_s=takes_s(values * _LOADED_BITS),
            ),
        )


def _steady(spec: Decoupled) -> float:
    """Return the part of the time in which sites compute, once the first rounds are over."""
    one, two = (trained(spec, rounds * spec.fragments) for rounds in (_ROUNDS, 2 * _ROUNDS))
    return (two.kept_s[0] - one.kept_s[0]) / (max(two.time_s) - max(one.time_s))
