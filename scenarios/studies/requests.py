"""`run.py requests`: a language model that two sites serve, by the WAN's rate, or by how many requests arrive, and the
rule that chooses a site.

One site prefills and decodes, the other only prefills, and sends the cache over the WAN (`analysis.model.serving`). All
requests are predicted. Of the first ones the caches are also measured: they cross the testbed's WAN by TCP, each when
its prefill is done, and the times of first tokens follow from when they were there.
"""

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

from scenarios.studies.harness import Answer, Column, Show, Study, Table, add_output, check_range, listed, quantity
from topologies.command_line import CommandParser
from topologies.errors import format_value

if TYPE_CHECKING:
    from analysis.figures.output import Picture
    from analysis.model.serving import Prefilled, Request, Rule, Serving
    from analysis.statistics.intervals import Interval

COMMAND = "run.py requests"
_MORE_CONNECTIONS, _MORE_THREADS = 16, 20
"""Connections more than caches are predicted to be under way at once, and threads of a rank more than connections."""
_AT_ONCE = "all requests arrive at once"
_TELLING = 100
"""So many requests tell that their times grow with their number."""
_MOST_MEASURED, _MOST_REQUESTS = 1000, 10_000_000
_WAN_RATES = "2 Gbit/s,5 Gbit/s,10 Gbit/s,25 Gbit/s,100 Gbit/s"
_LONGEST_S = 900.0  # of what is measured: ranks are ended after 1000 s
_MOST_DRAWS = 100
_WIDE = 10.0  # the ratio of rates of arrival above which their axis is logarithmic
_NOTABLE = 0.05
"""A difference from a predicted time, as a share, that is told."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """A rule at a rate of the WAN (bit/s), with the share of requests that the remote site prefills; `per_s` requests
    arrive a second, None for those of a trace.

    Percentiles of the time to the first token are in s, and requests are served a second until the last one ends.
    `busiest` is the resource of which the greatest share is asked for, and `load` that share, None if all requests
    arrive at once. `measured` is the number of requests whose caches were measured, and the errors are how far their
    first tokens are from the predicted ones, as shares: the median and the largest, None if none was measured.
    `draws_s` has the 99th percentile with each draw of requests; all other numbers are those of the first.
    """

    rule: str
    wan_bps: float
    remote: float
    p50_s: float
    p90_s: float
    p99_s: float
    served_per_s: float
    busiest: str
    load: float | None
    measured: int
    error_median: float | None
    error_most: float | None
    draws_s: tuple[float, ...]
    per_s: float | None = None


@dataclass(frozen=True)
class Axis:
    """What varies from line to line: the rate of the WAN, or (`by_arrivals`) how many requests arrive a second."""

    by_arrivals: bool

    @property
    def title(self) -> str:
        """The quantity with its unit."""
        return "arrivals (requests/s)" if self.by_arrivals else "WAN (Gbit/s)"

    @property
    def unit(self) -> str:
        """The unit of the quantity."""
        return "requests/s" if self.by_arrivals else "Gbit/s"

    def of(self, line: Line) -> float:
        """Return where a line is, in that unit."""
        return (line.per_s or 0.0) if self.by_arrivals else line.wan_bps / 1e9


def _parser() -> CommandParser:
    parser = CommandParser(
        prog=COMMAND,
        description="Time to first token of a language model whose requests are prefilled in two sites.",
    )
    add = parser.add_argument
    add(
        "--rules", default="local,remote,selective", help="local, remote, selective, or FILE:NAME (default %(default)s)"
    )
    add("--trace", type=Path, metavar="CSV", help="requests: time, input tokens, output tokens (default: at random)")
    add("-n", "--requests", type=int, default=20_000, metavar="N", help="requests (default %(default)s)")
    add("--per-second", default="5", metavar="N,...", help="requests a second, one or several (default %(default)s)")
    add("--input", type=float, default=8000.0, metavar="N", help="mean input tokens (default %(default)s)")
    add("--output", type=float, default=200.0, metavar="N", help="mean output tokens (default %(default)s)")
    add("--local", type=int, default=4, metavar="N", help="servers that prefill in the local site (default 4)")
    add("--remote", type=int, default=4, metavar="N", help="the same in the remote site (default 4)")
    add("--local-token", default="80 us", metavar="TIME", help="a server's time for an input token (default 80 us)")
    add("--remote-token", default="40 us", metavar="TIME", help="the same in the remote site (default 40 us)")
    add("--cache", default="20 kB", metavar="SIZE", help="bytes of the cache of a token (default 20 kB)")
    add("--slots", type=int, default=256, metavar="N", help="requests that are decoded at a time (default 256)")
    add("--token", default="20 ms", metavar="TIME", help="time of an output token (default 20 ms)")
    add("--wan-rates", default=_WAN_RATES, help="one beside several --per-second (default %(default)s)")
    add("--wan-delay", default="10 ms", metavar="TIME", help="of the WAN, one way (default 10 ms)")
    add("--seed", type=int, default=1, metavar="S", help="of requests at random (default 1)")
    add("--draws", type=int, default=5, metavar="N", help="of requests at random, for intervals (default 5)")
    add("--measured", type=int, default=100, metavar="N", help="first requests that are measured (default 100)")
    add("--engine", choices=("model", "both"), default="model", help="both: some are measured too (default model)")
    add_output(parser)
    return parser


def _answer(options: argparse.Namespace, show: Show) -> Answer:
    check_range(options, 1, _MOST_REQUESTS, "requests")
    check_range(options, 1e-6, 1e6, "input", "output")
    check_range(options, 1, 10_000, "local", "remote", "slots")
    check_range(options, 0, 2**63 - 1, "seed")
    check_range(options, 1, _MOST_MEASURED, "measured")
    check_range(options, 1, _MOST_DRAWS, "draws")
    from scenarios.policies.serving_rule import rule_of

    rules = {name: rule_of(name, "--rules") for name in listed("--rules", options.rules)}
    base = _serving(options)
    rates = [*dict.fromkeys(_rate(text) for text in listed("--wan-rates", options.wan_rates))]
    arrivals = _arrivals(options)
    if min(len(arrivals), len(rates)) > 1:
        both = f"{len(arrivals)} rates of arrival with {len(rates)} of the WAN"
        raise ValueError(f'--per-second: {both}; allowed: several of one of the two (--wan-rates "10 Gbit/s")')
    axis, lines, count = Axis(len(arrivals) > 1), list[Line](), 0
    for per_s in arrivals:
        draws = [*_draws(options, per_s)]
        count = len(draws[0])
        for rate in rates:
            for name, rule in rules.items():
                show(f"{len(lines)} of {len(arrivals) * len(rates) * len(rules)} points")
                measured = options.measured if options.engine == "both" else 0
                serving = replace(base, wan_bps=rate)
                line = _line(draws, serving, name, rule, measured=measured, seed=options.seed)
                lines.append(replace(line, per_s=per_s))
    columns = [
        Column[Line](axis.title, lambda line: f"{axis.of(line):g}"),
        Column[Line]("rule", lambda line: line.rule, left=True),
        Column[Line]("remote (%)", lambda line: f"{100 * line.remote:.1f}"),
        Column[Line]("first token, p50 (s)", lambda line: f"{line.p50_s:,.3f}"),
        Column[Line]("p90 (s)", lambda line: f"{line.p90_s:,.3f}"),
        Column[Line]("p99 (s)", lambda line: f"{line.p99_s:,.3f}"),
        Column[Line]("requests/s", lambda line: f"{line.served_per_s:.2f}"),
        Column[Line]("busiest", lambda line: line.busiest, left=True, why=_AT_ONCE),
        Column[Line]("load", lambda line: "" if line.load is None else f"{line.load:.2f}", why=_AT_ONCE),
    ]
    if any(line.measured for line in lines):
        columns += [
            Column[Line]("measured", lambda line: str(line.measured)),
            Column[Line]("from predicted (%): median", lambda line: _percent(line.error_median), why="none is remote"),
            Column[Line]("most", lambda line: _percent(line.error_most), why="none is remote"),
        ]
    told = _parameters(options, lines, count)
    title = f"{', '.join(told.values())}; predicted"
    return Answer(
        tables=[Table(columns, lines, title=title, notes=["", *_sentences(lines, axis, count)])],
        as_json=[asdict(line) | {"parameters": told} for line in lines],
        picture=lambda: _picture(lines, axis, title.replace(" us", " µs")),
        problems=[*_warnings(lines)],
    )


def _parameters(options: argparse.Namespace, lines: Sequence[Line], count: int) -> dict[str, str]:
    """Return in words what the answer holds for, by name: what no line tells of itself."""
    told = {"requests": f"{count:,} request{'s' * (count != 1)}"}
    if options.trace is not None:
        told["requests"] += f" of {options.trace.name}"
    else:
        if len({line.per_s for line in lines}) == 1:
            told["arrivals"] = f"{lines[0].per_s:g} a second"
        told["tokens"] = f"{options.input:,g} + {options.output:,g} tokens on average"
    told["servers"] = f"{options.local} + {options.remote} servers that prefill"
    told["prefill"] = f"{options.local_token} and {options.remote_token} a token"
    told["cache"] = f"{options.cache} of cache a token"
    told["decoding"] = f"{options.slots:,} decoded at a time, {options.token} a token"
    if len({line.wan_bps for line in lines}) == 1:
        told["wan_rate"] = f"WAN {lines[0].wan_bps / 1e9:g} Gbit/s"
    return told | {"wan_delay": f"WAN delay {options.wan_delay}"}


def _arrivals(options: argparse.Namespace) -> list[float | None]:
    """Return how many requests arrive a second, one or several; None for those of a trace. Raises ValueError."""
    if options.trace is not None:
        return [None]
    found = list[float | None]()
    for text in listed("--per-second", options.per_second):
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 1e-6 <= value <= 1e6:
            raise ValueError(f"--per-second: {format_value(text)}; allowed: numbers from 0.000001 to 1,000,000")
        found.append(value)
    return [*dict.fromkeys(found)]


def _rate(text: str) -> float:
    from topologies.units import parse_rate_bps

    return quantity(COMMAND, "--wan-rates", text, parse_rate_bps)


def _serving(options: argparse.Namespace) -> "Serving":
    from analysis.model.serving import Serving
    from topologies.units import parse_delay_s, parse_size_bytes

    def time_s(name: str) -> float:
        return quantity(COMMAND, f"--{name.replace('_', '-')}", getattr(options, name), parse_delay_s)

    return Serving(
        local_servers=options.local,
        remote_servers=options.remote,
        local_token_s=time_s("local_token"),
        remote_token_s=time_s("remote_token"),
        cache_bytes=quantity(COMMAND, "--cache", options.cache, parse_size_bytes),
        wan_bps=1.0,
        wan_delay_s=time_s("wan_delay"),
        slots=options.slots,
        token_s=time_s("token"),
    )


def _draws(options: argparse.Namespace, per_s: float | None) -> "Iterator[Sequence[Request]]":
    """Yield the requests: those of the trace, or else, with `per_s` a second, a draw for each of as many seeds as there
    are draws."""
    from analysis.model.serving import poisson
    from scenarios.spec.request_trace import read

    if per_s is None:
        try:
            yield read(options.trace)[: options.requests]
        except ValueError as error:
            raise ValueError(f"--trace: {error}") from None
        return
    for draw in range(options.draws):
        yield poisson(
            options.requests,
            per_s=per_s,
            input_tokens=options.input,
            output_tokens=options.output,
            seed=(options.seed + draw) % 2**63,
        )


def _line(
    draws: "Sequence[Sequence[Request]]",
    serving: "Serving",
    name: str,
    rule: "Callable[[], Rule]",
    *,
    measured: int,
    seed: int,
) -> Line:
    import numpy as np

    from analysis.model.serving import Prefilled, loads, prefill, served

    requests = draws[0]
    every = prefill(requests, serving, rule())
    of, errors = served(requests, serving, every), list[float]()
    others = [served(each, serving, prefill(each, serving, rule())).first_token_s for each in draws[1:]]
    first = requests[:measured]
    # It does not depend on what follows; asked anew, a rule that draws would decide otherwise.
    prefilled = Prefilled(
        is_remote=every.is_remote[:measured], server=every.server[:measured], done_s=every.done_s[:measured]
    )
    if any(prefilled.is_remote):
        predicted = served(first, serving, prefilled)
        found = served(first, serving, prefilled, arrivals_s(first, serving, prefilled, seed=seed))
        errors = [*map(float, (found.first_token_s / predicted.first_token_s - 1)[list(prefilled.is_remote)])]
    p50, p90, p99 = map(float, np.percentile(of.first_token_s, (50, 90, 99)))
    busiest, load = max(loads(requests, serving, every).items(), key=lambda item: item[1], default=("", None))
    return Line(
        rule=name,
        wan_bps=serving.wan_bps,
        remote=sum(every.is_remote) / len(requests),
        p50_s=p50,
        p90_s=p90,
        p99_s=p99,
        served_per_s=len(requests) / float(of.end_s.max() - requests[0].arrival_s),
        busiest=busiest,
        load=load,
        measured=len(errors),
        error_median=float(np.median(errors)) if errors else None,
        error_most=max(errors, key=abs) if errors else None,
        draws_s=(p99, *(float(np.percentile(first_token_s, 99)) for first_token_s in others)),
    )


def arrivals_s(
    requests: "Sequence[Request]", serving: "Serving", prefilled: "Prefilled", *, seed: int
) -> dict[int, float]:
    """Measure: return when the cache of each request that is prefilled remotely was in the local site, s. Raises
    ValueError if the last one is there later than can be measured."""
    from analysis.model.serving import remote_caches, transfers_s
    from scenarios.studies.rank_programs import printed, program, two_hosts

    caches = sorted(remote_caches(requests, serving, prefilled), key=lambda cache: cache[1])
    _, begin_s, sizes = zip(*caches, strict=True)
    ends_s = transfers_s(begin_s, sizes, rate_bps=serving.wan_bps, delay_s=serving.wan_delay_s)
    last_s = max(ends_s)
    if last_s > _LONGEST_S:
        what = f"the last of {len(requests)} requests' caches is there after {last_s:,.0f} s"
        raise ValueError(f"--measured: {what}; allowed: up to {_LONGEST_S:,.0f} s, so measure fewer requests")
    words = [f"{round(ready_s * 1e6)}:{max(1, round(size))}" for _, ready_s, size in caches]
    at_once = max(
        sum(begin <= at_s < end for begin, end in zip(begin_s, ends_s, strict=True)) for at_s in begin_s
    )  # without a connection for each of them, caches would wait that share the WAN in the model
    connections = min(at_once + _MORE_CONNECTIONS, len(caches))
    config = two_hosts(
        wan_bps=serving.wan_bps,
        wan_delay_s=serving.wan_delay_s,
        intra_rate="1000 Gbit/s",
        seed=seed,
        values=program("caches", connections, *words) | {"program.processes": connections + _MORE_THREADS},
    )
    took_s = printed(config)
    return {number: ready_s + took for (number, ready_s, _), took in zip(caches, took_s, strict=True)}


def _sentences(lines: Sequence[Line], axis: Axis, count: int) -> Iterator[str]:
    """Yield, for each rate of the WAN or of arrivals, the rule with the least 99th percentile, and by how much it is
    ahead; and what is overloaded, if there are enough requests to tell."""
    for rate in dict.fromkeys(map(axis.of, lines)):
        ordered = sorted((line for line in lines if axis.of(line) == rate), key=lambda line: line.p99_s)
        if len(ordered) > 1:
            best, second = ordered[:2]
            gain = 100 * (1 - best.p99_s / second.p99_s)
            ahead = f"{gain:.1f} % below {second.rule}" if gain >= 0.05 else f"the same as {second.rule}"
            within = f"99 of 100 first tokens come within {best.p99_s:,.3f} s with {best.rule}"
            yield f"At {rate:g} {axis.unit}, {within}, {ahead}{_over_draws(best, second)}."
    draws = len(lines[0].draws_s)
    if draws == 1 and len({line.rule for line in lines}) > 1:
        yield (
            f"These are percentiles of one sample of {count:,} request{'s' * (count != 1)}, without intervals: with "
            "others they may differ."
        )
    if crossings := [*_crossings(lines, axis)]:
        of = "this percentile" if draws == 1 else f"the mean of this percentile over {draws} draws of requests"
        yield f"By {of}, {'; '.join(crossings)}."
    full = [f"{one.rule} at {axis.of(one):g} {axis.unit} ({one.busiest})" for one in lines if (one.load or 0) > 1]
    if full and count >= _TELLING:
        yield f"More is asked for than there is, so that times grow with the number of requests: {', '.join(full)}."


def _over_draws(best: Line, second: Line) -> str:
    """Return by how much a rule is ahead of another one over all draws of requests, with an interval if they are
    enough; "" of a single draw, or if the rules are the same at all."""
    gain = _gain(best, second)
    if len(best.draws_s) == 1 or best.draws_s == second.draws_s:
        return ""
    from analysis.statistics.number_words import interval_words, percent

    words = f"{len(best.draws_s)} draws of requests {percent(gain.value)} % below it{interval_words(gain, 100, ' %')}"
    is_open = not gain.why and gain.low <= 0 <= gain.high
    return f"; over {words}{', so that either may be ahead' if is_open else ''}"


def _gain(best: Line, second: Line) -> "Interval":
    """Return how far the 99th percentile of one rule is below that of another one, as a share of that, over draws: both
    serve the same requests in each."""
    import numpy as np

    from analysis.statistics.intervals import mean_of_draws

    return mean_of_draws(1 - np.array(best.draws_s) / np.array(second.draws_s))


def _warnings(lines: Sequence[Line]) -> Iterator[str]:
    """Yield a sentence for each line whose measured times are not the predicted ones."""
    for line in lines:
        if line.error_most is not None and abs(line.error_most) > _NOTABLE:
            far = f"times to first token are up to {100 * line.error_most:+,.0f} % from the predicted ones"
            yield f"WARNING: {line.rule} at {line.wan_bps / 1e9:g} Gbit/s: measured {far}, which do not hold there"


def _crossings(lines: Sequence[Line], axis: Axis) -> Iterator[str]:
    """Yield, for each two rules, from which rate on the later one has the lower 99th percentile on average over draws,
    and where that is not sure, if there are several rates; nothing for rules that are the same at all."""
    by_point = {(line.rule, axis.of(line)): line for line in lines}
    times_s = {point: sum(line.draws_s) / len(line.draws_s) for point, line in by_point.items()}
    rates = sorted({axis.of(line) for line in lines})
    for rule, other in combinations(dict.fromkeys(line.rule for line in lines), 2):
        behind = [rate for rate in rates if times_s[other, rate] >= times_s[rule, rate]]
        if len(rates) < 2 or all(times_s[rule, rate] == times_s[other, rate] for rate in rates):
            continue
        gains = {rate: _gain(by_point[other, rate], by_point[rule, rate]) for rate in rates}
        open_at = [f"{rate:g}" for rate, gain in gains.items() if not gain.why and gain.low <= 0 <= gain.high]
        doubt = f" (either may be at {', '.join(open_at)} {axis.unit})" if open_at else ""
        if not behind:
            yield f"{other} is ahead of {rule} at all of these rates{doubt}"
        elif behind[-1] == rates[-1]:
            ahead = [f"{rate:g}" for rate in rates if rate not in behind]
            where = f"at {', '.join(ahead)} {axis.unit} only" if ahead else "at none of these rates"
            yield f"{other} is ahead of {rule} {where}{doubt}"
        else:
            first = next(rate for rate in rates if rate > behind[-1])
            yield f"{other} is ahead of {rule} from {first:g} {axis.unit} on{doubt}"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:+.3f}"


def _picture(lines: Sequence[Line], axis: Axis, title: str) -> "Picture":
    from analysis.figures.plain import Spot, picture

    spots = [
        Spot(f"{line.rule}, {name}", axis.of(line), value)
        for line in lines
        for name, value in (("p50", line.p50_s), ("p99", line.p99_s))
    ]
    at = [axis.of(line) for line in lines]
    is_log = not axis.by_arrivals or max(at) > _WIDE * min(at)
    y = "time to first token (s)"
    return picture(spots, name="requests", x=axis.title, y=y, title=title, log_x=is_log, log_y=True)


STUDY = Study(command=COMMAND, parser=_parser, answer=_answer)
