"""Knowledge that is measured: what the ends of a collective's messages, the counters of switches' ports, or probes tell
of links, and what is chosen by that; and what the counters of tunnels tell of demands."""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from analysis.model.max_plus import Times
from hosts.collectives.kinds import Workload
from hosts.collectives.schedule import Stream
from scenarios.policies.conditions import Conditions, chooser_of
from scenarios.policies.course import moments_of, new_course
from scenarios.policies.decide import (
    Decisions,
    channels,
    in_service,
    probes_of,
    rank_order_of,
    traffic,
)
from scenarios.policies.knowledge import PORTS, PROBED
from scenarios.policies.policy import Mode
from scenarios.spec.faults import CUTS, Fault, dead_cables, lacks_controller
from scenarios.spec.scenario import Scenario
from scenarios.spec.te import TeSpec
from topologies.fabric.fabric import Fabric
from topologies.fabric.ports import shared_by
from topologies.shaping.classes import SEGMENT_BYTES, SHORT_SEGMENT_BYTES, classes_of

Floats = npt.NDArray[np.float64]
Ranks = npt.NDArray[np.int16]

_LEAST_S = 1e-9  # what clocks can tell apart
ASKING_S = 47e-6
"""How long the controller takes to ask all switches for their counters, beside its delay to them; as in the VM."""
HEADROOM = 1.1
"""What a demand wants, of the highest rate that was measured of it."""
_FULL = 0.95  # of the rate of a demand's tunnels
_LATE = 1e-3  # of the time between two readings, by which one may be late


def links_by_flow(
    workload: Workload, decisions: Decisions, conditions: Conditions, *, start: int
) -> npt.NDArray[np.int32]:
    """The logical links or ports of every flow of those collectives in order, [K, F, H], -1 for none."""
    return links_passed(
        workload, decisions.placement, decisions.path, conditions, start=start, spreads=decisions.spreads
    )


def links_passed(
    workload: Workload, placement: Ranks, path: Ranks, conditions: Conditions, *, start: int, spreads: bool
) -> npt.NDArray[np.int32]:
    """As `links_by_flow`, of placements [K, n] and paths [K, F]; `spreads` as of `Decisions`."""
    begins, ends = (np.array(places) for places in workload.schedule.ends)
    flows = begins != ends
    channel = channels(workload)[flows] if spreads else None
    ranks = placement[:, begins[flows]], placement[:, ends[flows]]
    passed = conditions.passed(start, *ranks, path[:, flows], channel)
    found = np.full((*path.shape, passed.shape[-1]), -1, dtype=np.int32)
    found[:, flows] = passed
    return found


def at_ends(
    workload: Workload, links: npt.NDArray[np.int32], delays_s: Floats, *, sent_s: Floats, arrived_s: Floats
) -> Floats:
    """The rates of links as a collective's messages tell them at their ends, whole bit/s, NaN for a link without any.

    `links`, [F, H], are those that each flow passes, -1 for none, `delays_s` their delays; `sent_s` and `arrived_s`,
    [T] s, are when each transfer was handed over and had arrived. A message is on its links from when it was handed
    over, or the one before it on its flow had left if that was later, until its arrival less the delay. A flow's rate
    is its bits over the time of its messages, and all flows' together those over the time in which any was there. A
    link is taken to have the highest of these: it has no less, and of the links of a flow that was alone one has that.
    """
    schedule = workload.schedule
    messages: defaultdict[int, list[tuple[float, float, float]]] = defaultdict(list)  # of a flow: bits, from, until
    for index, transfer in enumerate(schedule.transfers):
        if isinstance(schedule.flows[transfer.flow], Stream):
            continue
        row, before = links[transfer.flow], messages[transfer.flow]
        until_s = float(arrived_s[index] - delays_s[row[row >= 0]].sum())
        since_s = max(float(sent_s[index]), before[-1][2]) if before else float(sent_s[index])
        before.append((8.0 * transfer.amount * workload.slot_bytes, since_s, max(until_s, since_s)))
    users: defaultdict[int, list[int]] = defaultdict(list)
    for flow in messages:
        for link in links[flow][links[flow] >= 0].tolist():
            users[link].append(flow)
    alone_bps = {flow: _rate_bps(some) for flow, some in messages.items()}
    found = np.full(delays_s.shape, np.nan)
    for link, flows in users.items():
        found[link] = max(alone_bps[flow] for flow in flows)
        if len(flows) > 1:
            together = sorted((one for flow in flows for one in messages[flow]), key=lambda one: one[1])
            found[link] = max(found[link], _rate_bps(together))
    return np.round(found)


def _rate_bps(messages: Sequence[tuple[float, float, float]]) -> float:
    """The bits of messages over the time in which any of them was there; they are in the order of their beginnings."""
    busy_s, end_s = 0.0, -np.inf
    for _, since_s, until_s in messages:
        busy_s += max(0.0, until_s - max(since_s, end_s))
        end_s = max(end_s, until_s)
    return sum(bits for bits, _, _ in messages) / max(busy_s, _LEAST_S)


@dataclass(frozen=True, kw_only=True)
class Readings:
    """What switches counted of links, `link` [L], in S readings: `sent_bytes` [S, L], each at an instant between
    `since_s` and `until_s` [S, L], seconds from the collective's beginning."""

    link: npt.NDArray[np.int32]
    since_s: Floats
    until_s: Floats
    sent_bytes: npt.NDArray[np.int64]


def readings(counters: npt.NDArray[np.int64]) -> Readings:
    """The readings of rows of a link or port, the ends of an instant in ns, and bytes, [S * L, 4], link by link."""
    link, first = np.unique(counters[:, 0], return_index=True)
    _, since_ns, until_ns, sent = counters.reshape(max(1, link.size), -1, 4).transpose(2, 1, 0)
    return Readings(
        link=counters[np.sort(first), 0].astype(np.int32),
        since_s=since_ns / 1e9,
        until_s=until_ns / 1e9,
        sent_bytes=sent,
    )


@lru_cache(maxsize=16)
def ports_of(fabric: Fabric) -> tuple[tuple[tuple[str, int], ...], ...]:
    """The switches' ports, by name and OpenFlow number, that send what a link or port carries behind what limits it,
    for each of them; none where a GPU sends, as its queue is behind the cable's first port.
    """
    number = {port.interface: (switch.name, port.number) for switch in fabric.switches for port in switch.ports}
    found: list[list[tuple[str, int]]] = [[] for _ in shared_by(fabric).all]
    for one in classes_of(fabric):
        if one.interface in number:
            found[one.link].append(number[one.interface])
    return tuple(map(tuple, found))


@lru_cache(maxsize=16)
def _through(fabric: Fabric) -> tuple[tuple[tuple[str, int], ...], ...]:
    """As `ports_of`, and of a link from a border router to a GPU also the leaf's port, where nothing limits it."""
    leaf = {(s.name, port.peer): (s.name, port.number) for s in fabric.switches for port in s.ports}
    nic = {gpu.name: leaf[gpu.leaf, gpu.name] for gpu in fabric.gpus}
    links = shared_by(fabric).all
    return tuple(
        (*ports, nic[links[index].dst]) if links[index].kind == "from_br" else ports
        for index, ports in enumerate(ports_of(fabric))
    )


def counted_alone(fabric: Fabric, links: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """The links, of those that flows pass, [F, H], of which a port's counter is nobody else's: [L]."""
    used, through = np.unique(links[links >= 0]), _through(fabric)
    users = Counter(port for link in used for port in through[link])
    alone = [link for link in used if ports_of(fabric)[link] and all(users[port] == 1 for port in through[link])]
    return np.array(alone, dtype=np.int32)


def predicted_readings(
    workload: Workload,
    links: npt.NDArray[np.int32],
    rates_bps: Floats,
    link: npt.NDArray[np.int32],
    found: Times,
    *,
    every_s: float,
    fair: bool,
) -> Readings:
    """What is read, every so many seconds and at the end, of these links, [L], where flows pass `links` [F, H] and
    transfers are predicted as `found`, one collective: each at a constant rate from its beginning until it has left.
    Unless flows have `fair` shares, and little queued for that, a link before the slowest sends a message sooner, at
    the least rate up to there; `rates_bps`, [links], are the true ones.
    """
    schedule, end_s = workload.schedule, float(found.arrives_s.max())
    at_s = np.append(np.arange(0.0, end_s, every_s), end_s)
    sent = np.zeros((at_s.size, link.size))
    left_s: dict[int, float] = {}
    for index, transfer in enumerate(schedule.transfers):
        way = links[transfer.flow][links[transfer.flow] >= 0]
        columns = np.array([(link == one).argmax() for one in way if (link == one).any()], dtype=np.intp)
        if not columns.size:
            continue
        amount_bytes = transfer.amount * workload.slot_bytes
        until_s = float(found.leaves_s[index, 0])
        since_s = max(float(found.begins_s[index, 0]), left_s.get(transfer.flow, 0.0))
        left_s[transfer.flow] = until_s
        takes_s = np.full(columns.size, until_s - since_s)
        if not fair:
            first_bps = np.minimum.accumulate(rates_bps[way])[np.isin(way, link)]
            takes_s = np.minimum(takes_s, 8 * amount_bytes / first_bps)
        part = np.clip((at_s[:, None] - since_s) / np.maximum(takes_s, _LEAST_S), 0.0, 1.0)
        sent[:, columns] += amount_bytes * part
    since = np.tile(at_s[:, None], link.size)
    return Readings(link=link, since_s=since, until_s=since + ASKING_S, sent_bytes=np.round(sent).astype(np.int64))


def at_ports(readings: Readings, *, links: int, fair: bool) -> Floats:
    """The rates of links as counters tell them, whole bit/s of `links`, NaN for those that no counter is of or that
    sent no more than a segment; segments are short where flows have `fair` shares.

    Between two readings, 1, 2, 4, 8 ... apart, a link sent at least what the counter grew by less a segment, which
    counts as sent when it begins to be, in at most the time from the earliest instant of the one to the latest of the
    other. The highest of these rates is a lower bound of the link's.
    """
    segment_bytes = SHORT_SEGMENT_BYTES if fair else SEGMENT_BYTES
    best_bps, apart = np.zeros(readings.link.size), 1
    while apart < len(readings.sent_bytes):
        grown = readings.sent_bytes[apart:] - readings.sent_bytes[:-apart] - segment_bytes
        took_s = np.maximum(readings.until_s[apart:] - readings.since_s[:-apart], _LEAST_S)
        best_bps = np.maximum(best_bps, (8.0 * grown / took_s).max(axis=0))
        apart *= 2
    found = np.full(links, np.nan)
    found[readings.link] = np.where(best_bps >= 1, np.round(best_bps), np.nan)
    return found


def probed_before(
    setting: Scenario, mode: Mode, conditions: Conditions, number: int, before: Decisions | None
) -> Ranks:
    """As `probes_of`, with the placement of the collective before, in whose place the first has ranks in order."""
    placement = rank_order_of(conditions.fabric, setting.workload) if before is None else before.placement[0]
    dead = dead_cables(conditions.in_force(number) if conditions.in_force else (), conditions.fabric)
    return probes_of(conditions.fabric, mode, setting.workload, placement, dead)


def probed_links(conditions: Conditions, number: int, probes: Ranks) -> npt.NDArray[np.int32]:
    """The links or ports that probes [P, 3] before this collective pass, -1 for none: [P, H]."""
    src, dst, path = probes.T[:, None]
    return conditions.passed(number, src, dst, path)[0]  # type: ignore[no-any-return]


def probe_takes_s(conditions: Conditions, number: int, probes: Ranks, size_bytes: int) -> Floats:
    """How long probes [P, 3] of so many bytes are predicted to be under way before this collective, [P] s: the delay
    of their way, and the transmission on its slowest link."""
    links, (rates_bps,) = probed_links(conditions, number, probes), conditions.shared_bps(number, 1)
    rates_bps, delays_s = np.append(rates_bps, np.inf), np.append(conditions.shared_delays_s, 0.0)  # -1 is the last
    found: Floats = delays_s[links].sum(axis=1) + 8 * size_bytes / rates_bps[links].min(axis=1, initial=np.inf)
    return found


def at_probes(conditions: Conditions, number: int, probes: Ranks, took_s: Floats, size_bytes: int) -> Floats:
    """The rates of links as probes of so many bytes tell them, whole bit/s, NaN for a link that none passed.

    `probes` are [P, 3], and `took_s`, [P], from when each was sent until it had arrived. The rest of that behind the
    delay is its transmission on the slowest link. A link is taken to have the highest rate of the probes over it. So a
    probed path is believed to have the rate of its own probe: no link on it has less, and its slowest has no more.
    """
    found = np.full(conditions.shared_delays_s.shape, np.nan)
    for row, seconds in zip(probed_links(conditions, number, probes), took_s.tolist(), strict=True):
        way = row[row >= 0]
        sends_s = max(seconds - float(conditions.shared_delays_s[way].sum()), _LEAST_S)
        found[way] = np.fmax(found[way], np.round(8 * size_bytes / sends_s))
    return found


def learnt(kind: str, before_bps: Floats, seen_bps: Floats, links: npt.NDArray[np.int32]) -> Floats:
    """What is believed of links, [links] bit/s, after these rates were seen, NaN for those that nothing was seen of.

    `links`, [F, H], are those that flows passed. Of the ends of messages that is what was seen. A port's counter shows
    a link's rate only where the link limited a flow. So a link is believed to have at least what was seen; and of the
    links on a flow's way the one that was fullest, by what is believed of it then, is taken to have limited the flow,
    and to have no more.
    """
    seen = ~np.isnan(seen_bps)
    if kind != PORTS:
        return np.where(seen, seen_bps, before_bps)
    believed = np.where(seen, np.fmax(before_bps, seen_bps), before_bps)
    full: Collection[int] = {
        max(ways, key=lambda link: seen_bps[link] / believed[link])
        for row in links
        if (ways := [link for link in row[row >= 0].tolist() if seen[link]])
    }
    found = believed.copy()
    found[list(full)] = seen_bps[list(full)]
    return found


def tunnels_of(fabric: Fabric, workload: Workload, path: Ranks) -> npt.NDArray[np.int32]:
    """The tunnel of each flow for its class, of paths [..., F], -1 within a site: numbered behind all links or ports,
    class by class."""
    first = len(shared_by(fabric).all) + np.array(traffic(workload).priority) * len(fabric.paths)
    return np.where(path >= 0, first + path, -1).astype(np.int32)


def wanted_of(fabric: Fabric, workload: Workload, read: Readings, *, sample_s: float) -> Floats:
    """What demands want by the readings of their tunnels in a collective, [classes, sites, sites] bit/s, NaN for those
    of which nothing was seen.

    That is HEADROOM times the highest mean rate over `sample_s`, or over all of a shorter collective. The highest mean
    is that of the automatic bandwidth of MPLS tunnels (RFC 8733), and the headroom that of BwE (Kumar et al.,
    "BwE: Flexible, Hierarchical Bandwidth Allocation for WAN Distributed Computing", SIGCOMM 2015): a demand that fills
    what it was given wants more.
    """
    sites, number = len(fabric.gpus_per_site), read.link - len(shared_by(fabric).all)
    ends = np.array([(path.src_site, path.dst_site) for path in fabric.paths])[number % len(fabric.paths)]
    sent = np.zeros((len(in_service(workload)), sites, sites, len(read.sent_bytes)))
    np.add.at(sent, (number // len(fabric.paths), *ends.T), read.sent_bytes.T)
    at_s = read.since_s[:, 0]
    last = np.arange(1, at_s.size)
    first = np.searchsorted(at_s, at_s[last] - sample_s * (1 - _LATE), side="right") - 1
    last = last[first >= 0] if (first >= 0).any() else last[-1:]
    first = np.maximum(first[-last.size :], 0)
    mean_bps = 8 * (sent[..., last] - sent[..., first]) / np.maximum(at_s[last] - at_s[first], _LEAST_S)
    found: Floats = HEADROOM * mean_bps.max(axis=-1)
    return np.where(found > 0, found, np.nan)


def wanted_within(
    fabric: Fabric, workload: Workload, read: Readings, change: int, given_bps: Floats, *, spec: TeSpec
) -> Floats | None:
    """What demands want from the change of this number in a collective on, from 1, as `wanted_of`, by the readings
    since the one before, in which tunnels had the rates `given_bps`, [classes * paths]; None where there are none.

    What has sent nothing wants nothing, and has what others leave then; what has sent a little, a segment in every
    sample, as less cannot be told. What has filled the rates that it had is not known to be content with a little more:
    what it requests counts.
    """
    last = change * spec.readings
    if last >= len(read.sent_bytes):
        return None
    some = slice(last - spec.readings, last + 1)
    part = replace(read, since_s=read.since_s[some], until_s=read.until_s[some], sent_bytes=read.sent_bytes[some])
    wanted_bps = wanted_of(fabric, workload, part, sample_s=spec.sample_s)
    had_bps, every = np.zeros(wanted_bps.shape), np.arange(given_bps.size)
    ends = np.array([(path.src_site, path.dst_site) for path in fabric.paths])[every % len(fabric.paths)]
    np.add.at(had_bps, (every // len(fabric.paths), *ends.T), given_bps)
    filled = wanted_bps >= HEADROOM * _FULL * had_bps
    least_bps = 8 * SHORT_SEGMENT_BYTES / spec.sample_s
    return np.where(np.isnan(wanted_bps), 0.0, np.where(filled, np.nan, np.maximum(wanted_bps, least_bps)))


class Demands:
    """What the demands of a mode want in each collective, as `Traffic.wanting`, where that is measured; None in the
    first ones.

    `seen` is called with the number of each collective once, in their order, for what was seen in it (`wanted_of`). Of
    `every` collectives that is the most of those in which the rates of tunnels were kept last.
    """

    def __init__(self, every: int, seen: Callable[[int], Floats]) -> None:
        self._every, self._ask, self._seen = every, seen, list[Floats]()

    def __call__(self, number: int) -> Floats | None:
        first = number - number % self._every
        while len(self._seen) < first:
            self._seen.append(self._ask(len(self._seen)))
        return np.fmax.reduce(self._seen[first - self._every : first]) if first else None


def tells(faults: Collection[Fault], in_force: Collection[Fault], number: int) -> bool:
    """Whether anything is learnt of links from a collective of a scenario with these faults, of which some were in
    force as it began: not where a cable is cut meanwhile, as some of its messages then took two ways, nor without a
    controller, which cannot choose the paths that are planned."""
    cut = any(one.collective == number and one.after_s is not None and one.kind in CUTS for one in faults)
    return not cut and not lacks_controller(in_force)


class Play:
    """What a mode with measured knowledge chooses, collective by collective from the first on, as far as was asked.

    `seen` is called with the number of a collective and what was chosen for it, for what was seen of links in it, as
    `at_ends` or `at_ports`. With probes that is what they saw before it, `at_probes`, and what was chosen for the one
    before, None before the first.
    """

    def __init__(
        self, setting: Scenario, mode: str, conditions: Conditions, seen: Callable[[int, Decisions | None], Floats]
    ) -> None:
        self._setting, self._mode, self._conditions = setting, setting.mode(mode), conditions
        self._choices = chooser_of(setting, self._mode, conditions)

        def after(number: int, before_bps: Floats) -> Floats:
            if not tells(setting.faults, conditions.in_force(number) if conditions.in_force else (), number):
                return before_bps
            decisions = self.decisions(number, 1)
            (links,) = links_by_flow(setting.workload, decisions, conditions, start=number)
            return learnt(self._mode.knowledge.kind, before_bps, seen(number, decisions), links)

        def ahead(number: int, before_bps: Floats) -> Floats:
            if not conditions.are_probed(self._mode, number, 1, setting.collective.reembed_every)[0]:
                return before_bps
            seen_bps = seen(number, self.decisions(number - 1, 1) if number else None)
            return np.where(np.isnan(seen_bps), before_bps, seen_bps)

        observed = ahead if self._mode.knowledge.kind == PROBED else after
        self._believed = conditions.believed(self._mode.knowledge, observed)
        self._course = new_course(setting, mode, self._believed) if setting.has_course(mode) else None
        self._chosen: list[tuple[Ranks, Ranks, bool, bool]] = []  # placement [n], paths [F], whether they are new

    def decisions(self, start: int, count: int) -> Decisions:
        """The decisions for collectives start .. start+count-1."""
        while len(self._chosen) < start + count:
            self._chosen.append(self._next(len(self._chosen)))
        rows = self._chosen[start : start + count]
        placement, path, embeds, routes = (np.stack(part) for part in zip(*rows, strict=True))
        return self._choices.decisions(placement, path, self._conditions.rates_bps(start, count), new=(embeds, routes))

    def _next(self, number: int) -> tuple[Ranks, Ranks, bool, bool]:
        moments = moments_of(self._setting, self._mode.name, number, 1, course=self._course)
        embeds, routes = bool(moments.embedded[0] == number), bool(moments.routed[0] == number)
        if number and not embeds and not routes and not self._setting.faults:
            placement, path, _, _ = self._chosen[-1]
            return placement, path, False, False
        rates_bps = self._believed.rates_bps(number, 1)
        if embeds:
            placement = self._choices.placements(rates_bps)[0]
        else:
            placement = self._chosen[-1][0] if number else self._choices.in_order
        if routes or moments.routed[0] < 0:  # the fixed ones are the first that are whole
            path = self._choices.paths(placement[None], rates_bps, chosen=routes)[0]
        else:
            path = self._chosen[-1][1]
        return placement, path, embeds, routes
