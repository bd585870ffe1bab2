"""Formats the prompt's output: links, paths, collectives, failures, and the flow rules of a switch. Pure functions."""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from controller.forwarding.flow_mods import (
    DEFAULT_COOKIE,
    LAST_GENERATION,
    ROUTES_COOKIE,
    ROUTES_MASK,
    TUNNEL_COOKIE,
    tunnel_over,
    tunnel_tag,
)
from controller.routing.switch_paths import FabricPaths
from scenarios.policies.policy import Mode, When
from scenarios.prompt.state import State, candidates, crosses, edges
from scenarios.spec.admission import UNADMITTED, Transfer
from scenarios.testbed.record import CollectiveRecord
from scenarios.text_table import aligned
from topologies.fabric.fabric import Fabric
from topologies.fabric.failures import Cables, CutOff, cable_name, cut_off, reachable
from topologies.shaping.rate_scale import RateScale
from topologies.units import format_delay, format_rate, format_size

_MAX_PATHS = 8
_MAX_CABLES = 8
_PATHS_BY_ROUTING = {
    "single": "fixed",
    "ecmp": "hashed for each flow",
    "spray": "all used by pieces of each message",
    "te": "assigned to pieces of each message by the rates of the tunnels",
}


def rate(rate_bps: float) -> str:
    """Format a rate with four significant digits, such as 43.21 Gbit/s; "down" for 0."""
    return format_rate(round(float(f"{rate_bps:.4g}"))) if rate_bps else "down"


def size(size_bytes: float) -> str:
    """Format a size with four significant digits, such as 12.34 MB."""
    return format_size(round(float(f"{size_bytes:.4g}")))


def delay(delay_s: float) -> str:
    """Format a delay with four significant digits, such as 30.7 us; "0" below a nanosecond."""
    return format_delay(float(f"{delay_s:.4g}")) if delay_s >= 1e-9 else "0"


def duration(seconds: float) -> str:
    """Format a time in milliseconds, or in seconds from 1 s up."""
    return f"{seconds:.3f} s" if seconds >= 1 else f"{seconds * 1e3:.2f} ms"


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Collection[int]) -> list[str]:
    """Return the lines of a table; the columns whose indices are in `numbers` are right-aligned."""
    return aligned((headings, *rows), {*range(len(headings))} - {*numbers})


def scale_note(scale: RateScale) -> list[str]:
    """Return the line on the rate scale that follows every output with rates; no line at scale 1."""
    note = f"rate scale {scale}: the network carries {scale} of these rates and sizes; times are real"
    return [note] if scale.divisor > 1 else []


def banner(fabric: Fabric, scale: RateScale, *, where: str, folder: str) -> str:
    """Return the lines above the first prompt: the network's size and location, the rate scale, and first hints."""
    sites = " + ".join(str(count) for count in fabric.gpus_per_site)
    lines = (
        f"Longhaul: {len(fabric.gpus)} GPUs ({sites}), {len(fabric.switches)} switches, controller and agents are up",
        where,
        *scale_note(scale),
        f"captures go to {folder}",
        "help lists the verbs, Tab completes, Ctrl-C aborts, exit or Ctrl-D takes everything down",
    )
    return "\n".join(lines)


def wan(state: State, *, last_bytes: Mapping[int, int], all_bytes: Mapping[int, int], scale: RateScale) -> str:
    """Return a table of the WAN links.

    `last_bytes` and `all_bytes`, by link index, are bytes as carried; the table shows them in the scenario's units.
    """
    rows = [
        (
            link.name,
            rate(state.rates_bps[link.index]),
            delay(state.delays_s[link.index]),
            *(size(count.get(link.index, 0) * scale.divisor) for count in (last_bytes, all_bytes)),
        )
        for link in state.shared.all
        if link.kind == "wan"
    ]
    if not rows:
        return "no WAN links: the network is one site"
    headings = ("link", "available", "delay", "last collective", "all collectives")
    return "\n".join([*table(headings, rows, numbers=range(1, 5)), *scale_note(scale)])


def job(name: str, measured_s: float, predicted_s: float) -> str:
    """Compare the measured and the predicted time of a job."""
    ratio = f"{measured_s / predicted_s:.3f}"
    return f"{name}: measured {duration(measured_s)}, predicted {duration(predicted_s)}, ratio {ratio}"


def delivered(transfer: Transfer, completed_s: Mapping[str, float]) -> str:
    """Compare a transfer's due time with its measured completion; `completed_s` has the completions in s, by name."""
    measured_s = completed_s[transfer.job.name]
    is_in_time = measured_s <= transfer.due_s
    if transfer.outcome == UNADMITTED:
        verb, verdict = "requested", "in time" if is_in_time else "late"
    else:
        verb, verdict = "promised", "kept" if is_in_time else "broken"
    return f"{transfer.job.name}: {verb} by {delay(transfer.due_s)}, measured {delay(measured_s)}, {verdict}"


def tunnels(state: State, *, scale: RateScale) -> str:
    """Return a table of the tunnels in use: their sites, their rates, and how many flows each has."""
    users = Counter(path for *_, path, _, _ in state.status["flows"])
    rows = [
        (f"{path.src_site} to {path.dst_site}", path.name, rate(limits_bps[path.index]), str(users[path.index]))
        for limits_bps in state.status["limits"]
        for path in state.fabric.paths
        if limits_bps[path.index]
    ]
    if not rows:
        return "no tunnel has a rate; allowed: fabric.routing te, after a collective in a mode that chooses no paths"
    return "\n".join([*table(("sites", "tunnel", "rate", "flows"), rows, numbers=(2, 3)), *scale_note(scale)])


def paths(state: State, flows: Sequence[tuple[int, int]], *, message_bytes: int, scale: RateScale) -> str:
    """Return the candidate WAN paths of each crossing flow, cheapest first, with the largest message's time on each."""
    crossings = dict.fromkeys((src, dst) for src, dst in flows if crosses(state.fabric, src, dst))
    lines = [line for src, dst in crossings for line in _crossing(state, src, dst, message_bytes)]
    return "\n".join([*lines, *scale_note(scale)]) if lines else "no flow of the collective crosses the WAN"


def _crossing(state: State, src: int, dst: int, message_bytes: int) -> list[str]:
    """Return the paths of one crossing: the `_MAX_PATHS` cheapest, those in use, and the number of the others."""
    fabric = state.fabric
    routes = {path.index: state.route(src, dst, path.index) for path in candidates(fabric, src, dst)}
    if not routes:
        return [f"no WAN path joins the sites of g{src} and g{dst}"]
    in_use = state.in_use(src, dst)
    fixed = next(iter(routes))
    order = sorted(routes, key=lambda path: routes[path].cost_s(message_bytes))
    shown = order[:_MAX_PATHS] + [path for path in order[_MAX_PATHS:] if path in in_use]
    rows = []
    for path in shown:
        route = routes[path]
        down = [state.shared.all[link].name for link in route.links if state.rates_bps[link] == 0]
        marks = []
        if path in in_use and not down:
            share = f" by {in_use[path]} of {in_use.total()} flows" if in_use.total() > 1 else ""
            marks.append(f"in use{share}")
        if path == fixed:
            marks.append("fixed")
        if down:
            marks.append(f"{' and '.join(down)} {'is' if len(down) == 1 else 'are'} down")
        cost = "-" if down else duration(route.cost_s(message_bytes))
        rows.append((fabric.paths[path].name, rate(route.rate_bps), delay(route.delay_s), cost, ", ".join(marks)))
    headings = (f"g{src} > g{dst}", "slowest link", "delay", f"{format_size(message_bytes)}", "")
    lines = table(headings, rows, numbers=range(1, 4))
    if len(order) > len(shown):
        lines.append(f"and {len(order) - len(shown)} more expensive ones")
    if not any(route.rate_bps for route in routes.values()):
        lines.append(f"no working path from g{src} to g{dst}")
    return lines


def ring(fabric: Fabric, order: Sequence[int]) -> str:
    """Return a ring; if it crosses the WAN more often than necessary, also what the model then assumes."""
    text = " > ".join(f"g{rank}" for rank in (*order, order[0]))
    crossings = sum(crosses(fabric, src, dst) for src, dst in edges(order))
    if crossings <= len(fabric.gpus_per_site):
        return text
    alone = "the model assumes that no other flow uses the links of a crossing"
    return f"{text}\nit crosses the WAN {crossings} times; {alone}"


def placement(fabric: Fabric, ranks: Sequence[int]) -> str:
    """Return the placement of a schedule that is not a ring: the GPU at each position of the schedule."""
    return f"GPUs at positions 0 to {len(fabric.gpus) - 1}: {', '.join(f'g{rank}' for rank in ranks)}"


def mode(mode: Mode, reembed_every: int, routing: str) -> str:
    """Describe a mode: when it re-embeds and re-routes, and how the fabric routes flows if the mode does not."""

    def frequency(when: When) -> str:
        if not when.is_periodic:
            return f"by {when if mode.function is None else Path(mode.function).name}"
        every = when.period(reembed_every)
        return "for every collective" if every == 1 else f"for one collective in {every}, starting with the next"

    gpus = f"re-embedded {frequency(mode.reembed)}" if mode.reembeds else "in a fixed placement"
    paths = f"re-chosen {frequency(mode.reroute)}" if mode.reroutes else _PATHS_BY_ROUTING[routing]
    return f"{mode.name}: the GPUs {gpus}; WAN paths {paths}"


def rated(link: str, rate_bps: int, scale: RateScale, *, down: bool = False) -> str:
    """Confirm a link's new rate, with the carried part of it; the text also says whether the link is down."""
    carried = f" ({rate(scale.rate_bps(rate_bps))} at rate scale {scale})" if scale.divisor > 1 else ""
    return f"{link} has {rate(rate_bps)}{carried}{'; it is down now' if down else ''}"


def delayed(link: str, delay_s: float, least_s: float) -> str:
    """Confirm a link's new delay; a delay below `least_s` has no effect."""
    left_out = f"; in real time, delays below {delay(least_s)} are ignored" if delay_s < least_s else ""
    return f"{link} has a delay of {delay(delay_s)}{left_out}"


def iperf(*, src: int, dst: int, carried_bps: float, slowest: str, rate_bps: float, scale: RateScale) -> str:
    """Compare the goodput of a TCP flow with the rate of the slowest link on its path."""
    has_bps = scale.rate_bps(round(rate_bps))
    text = f"g{src} > g{dst}: {rate(carried_bps)} of payload carried; {slowest}, the slowest link on the path, has"
    share = f"{100 * carried_bps / has_bps:.1f} %"
    unscaled = f"rate scale {scale}: unscaled, that is {rate(carried_bps * scale.divisor)} of {rate(rate_bps)}"
    return f"{text} {rate(has_bps)} ({share})" + (f"\n{unscaled}" if scale.divisor > 1 else "")


def collective(words: str, record: CollectiveRecord, predicted_s: float, *, is_real: bool = False) -> str:
    """Format one collective, which the words name, with measured and predicted time and their ratio; in virtual time,
    flag more than 1 % off."""
    drops = f", {record.drops} packets dropped" if record.drops else ""
    late = " (this machine was too busy to keep time)" if record.late else ""
    is_off = not is_real and abs(record.completion_s / predicted_s - 1) > 0.01
    off = ": more than 1 % off, so the prediction does not hold here" if is_off else ""
    return (
        f"{words}: measured {duration(record.completion_s)}, predicted {duration(predicted_s)}, "
        f"ratio {record.completion_s / predicted_s:.3f}{drops}{late}{off}"
    )


def unreachable(fabric: Fabric, pairs: Sequence[tuple[int, int]], dead: Cables) -> str:
    """Name the ranks among these pairs that cannot reach each other and the failed cables to blame; "" if all can."""
    reach = reachable(fabric, dead)
    lost = [(src, dst) for src, dst in pairs if not reach[src, dst]]
    if not lost:
        return ""
    ranks = {rank for pair in lost for rank in pair}
    groups = [group for group in cut_off(fabric, dead) if ranks & set(group.ranks)]
    if groups:
        return isolated(groups)
    src, dst = lost[0]
    if crosses(fabric, src, dst) and not candidates(fabric, src, dst):
        return f"g{dst} cannot be reached from g{src}: no WAN path joins their sites"
    if not crosses(fabric, src, dst):
        site = fabric.gpus[src].site  # traffic within a site passes its leaves and spines only
        tiers = {switch.name for switch in fabric.switches if switch.site == site and switch.kind != "border"}
        dead = frozenset(ends for ends in dead if len(ends & tiers) == 2)
    return f"g{dst} cannot be reached from g{src}: {cables(dead)}"


def isolated(groups: Sequence[CutOff]) -> str:
    """Name the GPUs that cannot be reached, group by group, and the failed cables that cut each group off."""
    return "; ".join(f"{gpus(group.ranks)} cannot be reached: {cables(group.cables)}" for group in groups)


def gpus(ranks: Sequence[int]) -> str:
    """Name GPUs in order; three or more in a row by the first and the last: "g0, g2, g4 to g7"."""
    names: list[str] = []
    for _, group in groupby(enumerate(ranks), key=lambda item: item[1] - item[0]):
        run = [rank for _, rank in group]
        names += [f"g{run[0]} to g{run[-1]}"] if len(run) > 2 else [f"g{rank}" for rank in run]
    return ", ".join(names)


def cables(dead: Cables) -> str:
    """Return a clause that names failed cables: "g0 - s0l0 is down"."""
    names = sorted(cable_name(one, " - ") for one in dead)
    if len(names) > _MAX_CABLES:
        names[_MAX_CABLES:] = [f"{len(names) - _MAX_CABLES} more"]
    return f"{', '.join(names[:-1])} and {names[-1]} are down" if len(names) > 1 else f"{names[0]} is down"


def flows(dump: str, fabric: Fabric, switch: str) -> str:
    """Return the rules in the output of `ovs-ofctl dump-flows` as a table, highest priority first.

    Addresses and ports are replaced by the fabric's names. Rules that are not the controller's are appended verbatim.
    """
    fabric_paths = FabricPaths(fabric)
    names = (
        {address: gpu.name for gpu in fabric.gpus for address in (gpu.ip, gpu.mac)}
        | {network: f"site {site}" for site, network in enumerate(fabric_paths.networks)}
        | {key: port.peer for port in fabric_paths.switches[switch].ports for key in (str(port.number), port.interface)}
        | {tunnel_tag(path.index): f"tagged {path.name}" for path in fabric.paths}
        | {
            tunnel_tag(tunnel_over(path.index, index)): f"tagged {path.name}>{spine}"
            for path in fabric.paths
            for index, spine in enumerate(fabric_paths.spines(path.dst_site))
        }
    )
    lines = [line.strip() for line in dump.splitlines() if "actions=" in line]  # without the heading
    rules = [_rule(line, names) for line in lines]
    ordered = sorted(filter(None, rules), key=lambda rule: -rule[0])
    headings = ("rule", "from", "to", "coming", "goes to", "packets", "bytes")
    cells = table(headings, [cells for _, cells in ordered], numbers=(5, 6))
    return "\n".join([*cells, *(line for line, rule in zip(lines, rules, strict=True) if rule is None)])


def _rule(line: str, names: Mapping[str, str]) -> tuple[int, tuple[str, ...]] | None:
    """Return a rule's priority and its cells; None if the controller does not make such rules.

    `names` maps IP addresses, networks, MAC addresses, and the switch's port numbers and interfaces to names.
    """
    about, _, actions = line.partition("actions=")
    match = dict(field.strip().split("=", 1) for field in about.split(",") if "=" in field)
    cookie, target = int(match.get("cookie", "0"), 0), _target(actions, names)
    kind = {DEFAULT_COOKIE: "default", TUNNEL_COOKIE: "tunnel"}.get(cookie)
    if cookie & ROUTES_MASK == ROUTES_COOKIE:
        kind = f"route {cookie & LAST_GENERATION}"
    if kind is None or target is None:
        return None
    coming = [names.get(match["dl_dst"], match["dl_dst"])] if "dl_dst" in match else []
    if "in_port" in match:
        port = match["in_port"].strip('"')
        coming.append(f"from {names.get(port, port)}")
    ends = [names.get(address, address) for address in (match.get("nw_src", "any"), match.get("nw_dst", "any"))]
    if "tp_src" in match:
        ends[0] += f" port {match['tp_src']}"
    if "reg0" in match:
        coming.append(f"in channel {int(match['reg0'], 0)}")
    cells = (kind, *ends, ", ".join(coming), target, match["n_packets"], size(int(match["n_bytes"])))
    return int(match.get("priority", "32768")), cells


def _target(actions: str, names: Mapping[str, str]) -> str | None:
    """Return the node that a rule sends to and its change of the tag; None for actions the controller never uses."""
    if spread := re.fullmatch(
        r"multipath\(symmetric_l3l4\+udp,\d+,modulo_n,(\d+),0,NXM_NX_REG0\[\]\),goto_table:1", actions
    ):
        return f"one of {spread[1]} channels, by its ports"
    target, change = "", ""
    for action in actions.split(","):
        verb, _, value = action.partition(":")
        if action == "IN_PORT":
            target = "back"
        elif verb == "output":
            target = names.get(value.strip('"'), value)
        elif verb == "set_field" and value.endswith("->eth_dst"):
            mac = value.removesuffix("->eth_dst")
            named = names.get(mac, mac)
            change = f", {named}" if named.startswith("tagged") else ", tag off"
        elif verb != "set_field" or not value.endswith("->eth_src"):
            return None
    return target + change if target else None
