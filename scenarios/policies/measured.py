"""Knowledge that is measured: what the ends of a collective's messages tell of links, and what is chosen by that."""

from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from controller.routing.path_choice import Router
from hosts.collectives.kinds import Workload
from hosts.collectives.schedule import Stream
from scenarios.policies.conditions import Conditions
from scenarios.policies.course import moments_of, new_course
from scenarios.policies.decide import Chooser, Decisions, channels, ways_of
from scenarios.spec.scenario import Scenario

Floats = npt.NDArray[np.float64]
Ranks = npt.NDArray[np.int16]

_LEAST_S = 1e-9  # what clocks can tell apart


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


class Play:
    """What a mode with measured knowledge chooses, collective by collective from the first on, as far as was asked.

    `seen` is called with the number of a collective and what was chosen for it, for what was seen of links in it, as
    `at_ends`. Without faults: a choice stays until the next.
    """

    def __init__(
        self, setting: Scenario, mode: str, conditions: Conditions, seen: Callable[[int, Decisions], Floats]
    ) -> None:
        self._setting, self._mode, self._conditions = setting, setting.mode(mode), conditions
        router = Router(conditions.fabric, conditions.delays_s)
        self._choices = Chooser(router, self._mode, setting.workload, setting.collective.ring)
        self._believed = conditions.believed(
            self._mode.knowledge, lambda number: seen(number, self.decisions(number, 1))
        )
        self._course = None if self._mode.is_periodic else new_course(setting, mode, self._believed)
        self._chosen: list[tuple[Ranks, Ranks, bool, bool]] = []  # placement [n], paths [F], whether they are new

    def decisions(self, start: int, count: int) -> Decisions:
        """The decisions for collectives start .. start+count-1."""
        while len(self._chosen) < start + count:
            self._chosen.append(self._next(len(self._chosen)))
        rows = self._chosen[start : start + count]
        placement, path = (np.stack([row[part] for row in rows]) for part in (0, 1))
        alpha_s, beta_s = self._choices.flows(placement, path, self._conditions.rates_bps(start, count))
        return Decisions(
            placement=placement,
            path=path,
            alpha_s=alpha_s,
            beta_s=beta_s,
            reembedded=np.array([row[2] for row in rows]),
            rerouted=np.array([row[3] for row in rows]),
            spreads=ways_of(self._conditions.fabric, self._mode) is not None,
        )

    def _next(self, number: int) -> tuple[Ranks, Ranks, bool, bool]:
        moments = moments_of(self._setting, self._mode.name, number, 1, course=self._course)
        embeds, routes = bool(moments.embedded[0] == number), bool(moments.routed[0] == number)
        if number and not embeds and not routes:
            placement, path, _, _ = self._chosen[-1]
            return placement, path, False, False
        rates_bps = self._believed.rates_bps(number, 1)
        if embeds:
            placement = self._choices.placements(rates_bps)[0]
        else:
            placement = self._chosen[-1][0] if number else self._choices.in_order
        path = self._choices.paths(placement[None], rates_bps, chosen=routes)[0]
        return placement, path, embeds, routes
