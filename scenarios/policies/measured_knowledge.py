"""Measured knowledge: link rates inferred from message times, port counters or probes, and the rates of demands,
inferred from the counters of tunnels. Pure; `beliefs` uses it."""

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from analysis.model.max_plus import Times
from hosts.collectives.kinds import Workload
from hosts.collectives.schedule import Stream
from scenarios.policies.conditions import Conditions
from scenarios.policies.decide import (
    Decisions,
    channels,
    dscps_in_service_order,
    probes_of,
    rank_order_of,
    traffic,
)
from scenarios.policies.knowledge import PORTS
from scenarios.policies.outcome import Readings
from scenarios.policies.policy import Mode
from scenarios.spec.faults import CABLE_KINDS, Fault, dead_cables, lacks_controller
from scenarios.spec.scenario import Scenario
from scenarios.spec.te import TeSpec
from topologies.fabric.fabric import Fabric
from topologies.fabric.ports import links_in_grain
from topologies.shaping.classes import SEGMENT_BYTES, SHORT_SEGMENT_BYTES, TUNNELS_LATE_NS, classes_of

Floats = npt.NDArray[np.float64]
Ranks = npt.NDArray[np.int16]

_MIN_S = 1e-9  # the resolution of the clocks
READING_S = 47e-6
"""How long the controller takes to read all switches' counters, as measured in the VM, in addition to its delay."""
HEADROOM = 1.1
"""The rate that a demand is taken to want, as a multiple of its highest measured rate."""
_FULL_SHARE = 0.95  # a demand fills its tunnels if it sends at this share of their rate
_LATE_SHARE = 1e-3  # the tolerated lateness of a reading, as a share of the time between two readings


def links_by_flow(
    workload: Workload, decisions: Decisions, conditions: Conditions, *, start: int
) -> npt.NDArray[np.int32]:
    """Return the links or ports that every flow passes in these collectives, in order, [K, F, H]; -1: unused entry."""
    return links_passed(
        workload, decisions.placement, decisions.path, conditions, start=start, spreads=decisions.spreads
    )


def links_passed(
    workload: Workload, placement: Ranks, path: Ranks, conditions: Conditions, *, start: int, spreads: bool
) -> npt.NDArray[np.int32]:
    """As `links_by_flow`, for placements [K, n] and paths [K, F]; `spreads` is as in `Decisions`."""
    begins, ends = (np.array(places) for places in workload.schedule.ends)
    flows = begins != ends
    channel = channels(workload)[flows] if spreads else None
    ranks = placement[:, begins[flows]], placement[:, ends[flows]]
    passed = conditions.passed(start, *ranks, path[:, flows], channel)
    links = np.full((*path.shape, passed.shape[-1]), -1, dtype=np.int32)
    links[:, flows] = passed
    return links


def rates_from_messages(
    workload: Workload,
    links: npt.NDArray[np.int32],
    delays_s: Floats,
    *,
    sent_s: Floats,
    arrived_s: Floats,
    sizes_bytes: Sequence[int] | None = None,
    least_bytes: int = 1,
) -> Floats:
    """Infer the rates of links from the times of one collective's messages: whole bit/s, NaN for a link without any,
    or with ones of less than `least_bytes` only.

    `links`, [F, H], are the links that each flow passes, -1 for unused entries, and `delays_s` the delays of all links;
    `sent_s` and `arrived_s`, [T] s, are when each transfer was handed over and when it had arrived; `sizes_bytes`, [T],
    are their sizes if they differ from the slots of the workload. A message is on
    its links from the time it was handed over, or from the time the previous message of its flow had left if that is
    later, until its arrival minus the delay. A flow's rate is its bits divided by the time during which it had a
    message on its links; likewise for all flows over a link together. The estimate for a link is the highest of these
    rates: a lower bound, which is exact for the slowest link of a flow that shared no links.
    """
    schedule = workload.schedule
    messages: defaultdict[int, list[tuple[float, float, float]]] = defaultdict(list)  # by flow: bits, from, until
    for index, transfer in enumerate(schedule.transfers):
        size_bytes = transfer.amount * workload.slot_bytes if sizes_bytes is None else sizes_bytes[index]
        if isinstance(schedule.flows[transfer.flow], Stream) or size_bytes < least_bytes:
            continue  # an empty message tells no rate
        row, earlier = links[transfer.flow], messages[transfer.flow]
        until_s = float(arrived_s[index] - delays_s[row[row >= 0]].sum())
        since_s = max(float(sent_s[index]), earlier[-1][2]) if earlier else float(sent_s[index])
        earlier.append((8.0 * size_bytes, since_s, max(until_s, since_s)))
    users: defaultdict[int, list[int]] = defaultdict(list)
    for flow in messages:
        for link in links[flow][links[flow] >= 0].tolist():
            users[link].append(flow)
    flow_bps = {flow: _busy_rate_bps(own) for flow, own in messages.items()}
    rates_bps = np.full(delays_s.shape, np.nan)
    for link, flows in users.items():
        rates_bps[link] = max(flow_bps[flow] for flow in flows)
        if len(flows) > 1:
            together = sorted(chain.from_iterable(messages[flow] for flow in flows), key=itemgetter(1))
            rates_bps[link] = max(rates_bps[link], _busy_rate_bps(together))
    return np.round(rates_bps)


def _busy_rate_bps(messages: Sequence[tuple[float, float, float]]) -> float:
    """Return the bits of all messages divided by the time in which at least one was under way; sorted by start."""
    busy_s, end_s = 0.0, -np.inf
    for _, since_s, until_s in messages:
        busy_s += max(0.0, until_s - max(since_s, end_s))
        end_s = max(end_s, until_s)
    return sum(bits for bits, _, _ in messages) / max(busy_s, _MIN_S)


@lru_cache(maxsize=16)
def ports_of(fabric: Fabric) -> tuple[tuple[tuple[str, int], ...], ...]:
    """Return for each link or port the switch ports, as (switch, OpenFlow port number), that send its traffic after its
    queue. A link by which a GPU sends has none, because the switch counts its traffic before the queue."""
    port_of = {port.interface: (switch.name, port.number) for switch in fabric.switches for port in switch.ports}
    ports: list[list[tuple[str, int]]] = [[] for _ in links_in_grain(fabric).all]
    for htb_class in classes_of(fabric):
        if htb_class.interface in port_of:
            ports[htb_class.link].append(port_of[htb_class.interface])
    return tuple(map(tuple, ports))


@lru_cache(maxsize=16)
def _counting_ports(fabric: Fabric) -> tuple[tuple[tuple[str, int], ...], ...]:
    """As `ports_of`; a link from a border router to a GPU also has the leaf's port, where nothing limits it."""
    port_to = {(switch.name, port.peer): port.number for switch in fabric.switches for port in switch.ports}
    leaf_port = {gpu.name: (gpu.leaf, port_to[gpu.leaf, gpu.name]) for gpu in fabric.gpus}
    links = links_in_grain(fabric).all
    return tuple(
        (*ports, leaf_port[links[index].dst]) if links[index].kind == "from_br" else ports
        for index, ports in enumerate(ports_of(fabric))
    )


def counted_alone(fabric: Fabric, links: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Return those of the links that flows pass, [F, H], whose port counters count no other link's traffic: [L]."""
    used, ports = np.unique(links[links >= 0]), _counting_ports(fabric)
    users = Counter(port for link in used for port in ports[link])
    alone = [link for link in used if ports_of(fabric)[link] and all(users[port] == 1 for port in ports[link])]
    return np.array(alone, dtype=np.int32)


def predicted_readings(
    workload: Workload,
    links: npt.NDArray[np.int32],
    rates_bps: Floats,
    link: npt.NDArray[np.int32],
    predicted: Times,
    *,
    every_s: float,
    fair: bool,
) -> Readings:
    """Predict the counter readings of the links `link` [L], every `every_s` seconds and at the end of one collective.

    Flows pass `links` [F, H], and `predicted` has the times of transfers; each is sent at a constant rate from its
    beginning until it has left. With `fair` shares, queues are short and all links on a flow's path send at the same
    time. Otherwise a link before the slowest sends a message sooner, at the lowest of the rates up to that link;
    `rates_bps`, [links], are the true rates.
    """
    schedule, end_s = workload.schedule, float(predicted.arrives_s.max())
    at_s = np.append(np.arange(0.0, end_s, every_s), end_s)
    sent = np.zeros((at_s.size, link.size))
    left_s: dict[int, float] = {}
    for index, transfer in enumerate(schedule.transfers):
        hops = links[transfer.flow][links[transfer.flow] >= 0]
        columns = np.array([(link == hop).argmax() for hop in hops if (link == hop).any()], dtype=np.intp)
        if not columns.size:
            continue
        amount_bytes = transfer.amount * workload.slot_bytes
        until_s = float(predicted.leaves_s[index, 0])
        since_s = max(float(predicted.begins_s[index, 0]), left_s.get(transfer.flow, 0.0))
        left_s[transfer.flow] = until_s
        takes_s = np.full(columns.size, until_s - since_s)
        if not fair:
            lowest_bps = np.minimum.accumulate(rates_bps[hops])[np.isin(hops, link)]
            takes_s = np.minimum(takes_s, 8 * amount_bytes / lowest_bps)
        part = np.clip((at_s[:, None] - since_s) / np.maximum(takes_s, _MIN_S), 0.0, 1.0)
        sent[:, columns] += amount_bytes * part
    since = np.tile(at_s[:, None], link.size)
    return Readings(link=link, since_s=since, until_s=since + READING_S, sent_bytes=np.round(sent).astype(np.int64))


def rates_from_counters(readings: Readings, *, links: int, fair: bool) -> Floats:
    """Infer the rates of `links` links or ports from counter readings: [links], whole bit/s.

    The rate is NaN for a link without a counter, and for one that sent no more than a segment; segments are short if
    flows have `fair` shares. Consider readings 1, 2, 4, 8 ... apart. A counter counts a segment as soon as it begins to
    be sent, so between two readings the link sent at least the difference minus one segment. That took at most the time
    from the earliest instant of the first reading to the latest instant of the second. The highest of these rates is a
    lower bound on the link's rate.
    """
    segment_bytes = SHORT_SEGMENT_BYTES if fair else SEGMENT_BYTES
    best_bps, apart = np.zeros(readings.link.size), 1
    while apart < len(readings.sent_bytes):
        grown = readings.sent_bytes[apart:] - readings.sent_bytes[:-apart] - segment_bytes
        took_s = np.maximum(readings.until_s[apart:] - readings.since_s[:-apart], _MIN_S)
        best_bps = np.maximum(best_bps, (8.0 * grown / took_s).max(axis=0))
        apart *= 2
    rates_bps = np.full(links, np.nan)
    rates_bps[readings.link] = np.where(best_bps >= 1, np.round(best_bps), np.nan)
    return rates_bps


def probed_before(config: Scenario, mode: Mode, conditions: Conditions, number: int, before: Decisions | None) -> Ranks:
    """Return the probes before a collective: `probes_of` for the previous collective's placement, or for ranks in order
    before the first."""
    placement = rank_order_of(conditions.fabric, config.workload) if before is None else before.placement[0]
    dead = dead_cables(conditions.in_force(number) if conditions.in_force else (), conditions.fabric)
    return probes_of(conditions.fabric, mode, config.workload, placement, dead)


def probed_links(conditions: Conditions, number: int, probes: Ranks) -> npt.NDArray[np.int32]:
    """Return the links or ports that the probes [P, 3] before this collective pass, -1 for unused entries: [P, H]."""
    src, dst, path = probes.T[:, None]
    return conditions.passed(number, src, dst, path)[0]  # type: ignore[no-any-return]


def probe_takes_s(
    conditions: Conditions, number: int, probes: Ranks, size_bytes: int, *, tunnels: bool = False
) -> Floats:
    """Predict the transit times of probes [P, 3] of this size before a collective, [P] s: path delay plus transmission
    on the slowest link. With `tunnels` the WAN ports where these begin send 2 us of data at once, for which no probe
    before has used the time: there it is early by that."""
    links, (rates_bps,) = probed_links(conditions, number, probes), conditions.shared_bps(number, 1)
    rates_bps, delays_s = np.append(rates_bps, np.inf), np.append(conditions.shared_delays_s, 0.0)  # entry for -1
    early_s = np.zeros_like(rates_bps)
    if tunnels:
        early_s[list(tunnel_ports(conditions.fabric))] = TUNNELS_LATE_NS / 1e9
    sends_s = (8 * size_bytes / rates_bps - early_s)[links]
    takes_s: Floats = delays_s[links].sum(axis=1) + sends_s.max(axis=1, initial=0.0)
    return takes_s


def rates_from_probes(conditions: Conditions, number: int, probes: Ranks, took_s: Floats, size_bytes: int) -> Floats:
    """Infer the rates of links from probes of this size: whole bit/s, NaN for a link without a probe.

    `probes` are [P, 3], and `took_s`, [P], their transit times. A transit time minus the path delay is the transmission
    time on the slowest link. The estimate for a link is the highest rate of the probes over it. So a path is believed
    to have exactly the rate of its own probe: no link on it has less, and its slowest link has no more.
    """
    rates_bps = np.full(conditions.shared_delays_s.shape, np.nan)
    for row, seconds in zip(probed_links(conditions, number, probes), took_s.tolist(), strict=True):
        hops = row[row >= 0]
        sends_s = max(seconds - float(conditions.shared_delays_s[hops].sum()), _MIN_S)
        rates_bps[hops] = np.fmax(rates_bps[hops], np.round(8 * size_bytes / sends_s))
    return rates_bps


def updated_rates(kind: str, before_bps: Floats, seen_bps: Floats, links: npt.NDArray[np.int32]) -> Floats:
    """Return the believed rates, [links] bit/s, updated by observed ones, which are NaN for links without observation.

    `links`, [F, H], are the links that flows passed. Rates observed at the ends of messages replace the believed ones.
    A port counter shows a link's rate only if the link limited a flow. So with knowledge from ports, a link is first
    believed to have at least the observed rate. Then, on each flow's path, the link with the highest utilisation under
    these beliefs is assumed to have limited the flow, and is believed to have exactly the observed rate.
    """
    seen = ~np.isnan(seen_bps)
    if kind != PORTS:
        return np.where(seen, seen_bps, before_bps)
    believed_bps = np.where(seen, np.fmax(before_bps, seen_bps), before_bps)
    utilisation = seen_bps / believed_bps
    limiting = set[int]()
    for row in links:
        counted = [link for link in row[row >= 0].tolist() if seen[link]]
        if counted:
            limiting.add(max(counted, key=utilisation.__getitem__))
    believed_bps[list(limiting)] = seen_bps[list(limiting)]
    return believed_bps


def tunnels_of(fabric: Fabric, workload: Workload, path: Ranks) -> npt.NDArray[np.int32]:
    """Return the index of each flow's tunnel for paths [..., F], -1 within a site. Tunnels are numbered after all links
    or ports, class by class."""
    first = len(links_in_grain(fabric).all) + np.array(traffic(workload).priority) * len(fabric.paths)
    return np.where(path >= 0, first + path, -1).astype(np.int32)


def tunnel_ports(fabric: Fabric) -> list[int]:
    """Return the link or port where the tunnel over each path begins, by index."""
    index = {link.name: link.index for link in links_in_grain(fabric).all}
    return [index[fabric.links[path.links[0]].name] for path in fabric.paths]


def measured_demands(fabric: Fabric, workload: Workload, read: Readings, *, sample_s: float) -> Floats:
    """Estimate the rates that demands want from the readings of their tunnels in one collective.

    The result is [classes, sites, sites] bit/s, NaN for demands that sent nothing: HEADROOM times the highest mean rate
    over `sample_s`, or the mean over the whole collective if it is shorter. The highest mean is used as in automatic
    bandwidth adjustment of MPLS tunnels (RFC 8733), and the headroom as in BwE (Kumar et al., "BwE: Flexible,
    Hierarchical Bandwidth Allocation for WAN Distributed Computing", SIGCOMM 2015): a demand that fills its allocation
    may want more.
    """
    sites, tunnels = len(fabric.gpus_per_site), read.link - len(links_in_grain(fabric).all)
    sent = np.zeros((len(dscps_in_service_order(workload)), sites, sites, len(read.sent_bytes)))
    np.add.at(sent, _demands_of(fabric, tunnels), read.sent_bytes.T)
    at_s = read.since_s[:, 0]
    last = np.arange(1, at_s.size)
    first = np.searchsorted(at_s, at_s[last] - sample_s * (1 - _LATE_SHARE), side="right") - 1
    last = last[first >= 0] if (first >= 0).any() else last[-1:]
    first = np.maximum(first[-last.size :], 0)
    mean_bps = 8 * (sent[..., last] - sent[..., first]) / np.maximum(at_s[last] - at_s[first], _MIN_S)
    wanted_bps: Floats = HEADROOM * mean_bps.max(axis=-1)
    return np.where(wanted_bps > 0, wanted_bps, np.nan)


def _demands_of(fabric: Fabric, tunnels: npt.NDArray[np.integer[Any]]) -> tuple[npt.NDArray[np.integer[Any]], ...]:
    """Return class, source site and destination site of the demand that each tunnel, numbered from 0, serves."""
    service, path = np.divmod(tunnels, len(fabric.paths))
    src, dst = np.array([(tunnel.src_site, tunnel.dst_site) for tunnel in fabric.paths])[path].T
    return service, src, dst


def measured_demands_within(
    fabric: Fabric, workload: Workload, read: Readings, change: int, given_bps: Floats, *, spec: TeSpec
) -> Floats | None:
    """Estimate the rates that demands want from a change of tunnel rates within a collective on.

    `change` is the number of the change, from 1. It is based on the readings since the previous change, while tunnels
    had the rates `given_bps`, [classes * paths]; the result is None if these readings are not complete. A demand that
    sent nothing wants 0, and gets what others leave. One that sent little wants at least a segment per sample, because
    counters resolve no less. One that filled its tunnels may want any rate: it gets NaN, and its requested rate counts.
    """
    last = change * spec.readings
    if last >= len(read.sent_bytes):
        return None
    some = slice(last - spec.readings, last + 1)
    part = replace(read, since_s=read.since_s[some], until_s=read.until_s[some], sent_bytes=read.sent_bytes[some])
    wanted_bps = measured_demands(fabric, workload, part, sample_s=spec.sample_s)
    had_bps = np.zeros(wanted_bps.shape)
    np.add.at(had_bps, _demands_of(fabric, np.arange(given_bps.size)), given_bps)
    filled = wanted_bps >= HEADROOM * _FULL_SHARE * had_bps
    least_bps = 8 * SHORT_SEGMENT_BYTES / spec.sample_s
    return np.where(np.isnan(wanted_bps), 0.0, np.where(filled, np.nan, np.maximum(wanted_bps, least_bps)))


def is_observed(faults: Collection[Fault], in_force: Collection[Fault], number: int) -> bool:
    """Return whether observations of a collective are used, in a scenario with `faults` of which some were `in_force`
    when it began. They are not if a cable is cut while it runs, as some messages then took another path; nor without a
    controller, as the planned paths could not be installed."""
    is_cut = any(
        fault.collective == number and fault.after_s is not None and fault.kind in CABLE_KINDS for fault in faults
    )
    return not is_cut and not lacks_controller(in_force)
