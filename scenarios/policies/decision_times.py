"""Decision times: for each collective, the index of the collective before which its placement and paths were chosen.

Periodic policies have a closed formula (`periodic`). For all others the decision times depend on the believed
conditions and on the choices in force, so they are computed collective by collective from the first one
(`DecisionTimeline`).
"""

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt

from scenarios.policies.policy import Mode, When
from scenarios.policies.user_policy import Situation, ask
from topologies.conditions.sampler import Sampler

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int64]
Ranks = npt.NDArray[np.int16]

_BLOCK = 256  # collectives evaluated in one batch
_AHEAD = 16  # rows for which re-routing is evaluated at least, so that the next queries are answered from memory


@dataclass(frozen=True)
class DecisionTimes:
    """For K consecutive collectives, before which collective placement and paths were chosen, [K] each; -1: never."""

    embedded: Numbers
    routed: Numbers


class Choices(Protocol):
    """Chooses placements and paths and predicts times: for collectives (`decide.Chooser`), or for a program."""

    def placements(self, rates_bps: Floats) -> Ranks:
        """Return the placement chosen under each row of rates [K, links]: [K, n]."""

    def paths(self, placement: Ranks, rates_bps: Floats, *, chosen: bool) -> Ranks:
        """Return the path of every flow, [K, F]: the ones chosen under these rates, or the fixed ones."""

    def seconds(self, placement: Ranks, path: Ranks, rates_bps: Floats) -> Floats:
        """Return the predicted completion times with this placement and these paths under these rates, [K] seconds."""

    @property
    def in_order(self) -> Ranks:
        """The default placement, [n], used until one is chosen."""


def periodic(mode: Mode, reembed_every: int, start: int, count: int) -> DecisionTimes:
    """Return the decision times of a periodic mode for collectives start .. start+count-1."""
    number, never = np.arange(start, start + count), np.full(count, -1)

    def latest(rule: When) -> Numbers:
        period = rule.period(reembed_every)
        return number // period * period

    embedded = latest(mode.reembed) if mode.reembeds else never
    routed = np.maximum(latest(mode.reroute), embedded) if mode.reroutes else never
    return DecisionTimes(embedded, routed)


class DecisionTimeline:
    """The decision times of any mode under believed conditions, computed from collective 0 on and extended on demand.

    `cost_s(embeds, routes)` is the assumed cost of re-embedding, re-routing or both; `placement`, [n], is in force
    before the first collective (default: `choices.in_order`).

    The *gain* of a choice is the predicted reduction of a collective's time under the believed conditions, at least 0,
    times the `horizon` in collectives. The choice is made if its gain is at least its cost plus SHARE of the time that
    those collectives take without it. Re-routing is compared with the placement and paths in force. Re-embedding, with
    the new paths that it implies, is compared with keeping the placement and doing any re-routing that is due.

    `struck(start, count)` returns for consecutive collectives whether the set of failed cables differs from that of the
    previous collective. If so, a mode that re-routes chooses its paths again whatever its rule; `gain` compares with
    these new paths.
    """

    def __init__(
        self,
        mode: Mode,
        choices: Choices,
        believed: Sampler,
        *,
        reembed_every: int,
        cost_s: Callable[[bool, bool], float] = lambda embeds, routes: 0.0,
        struck: Callable[[int, int], Flags] = lambda _, count: np.full(count, False),
        placement: Ranks | None = None,
    ) -> None:
        self._mode, self._choices, self._believed = mode, choices, believed
        self._every, self._cost_s, self._struck = reembed_every, cost_s, struck
        self._horizon = reembed_every if mode.horizon is None else mode.horizon
        self._weighs = mode.function is not None or "gain" in (mode.reroute.kind, mode.reembed.kind)
        self._times = np.empty((2, 0), dtype=np.int64)  # decision times so far: row 0 embedding, row 1 routing
        self._latest = np.array([-1, -1])  # the latest embedding and routing decision
        self._rates_then: list[Floats | None] = [None, None]  # the believed rates [links] at those decisions
        self._in_force = _InForce(choices.in_order if placement is None else placement, None)
        self._span = 1  # how many collectives are examined for a decision at a time

    def copy(self) -> "DecisionTimeline":
        """Return an independent copy, which can be extended without changing this timeline."""
        timeline = copy(self)
        timeline._latest, timeline._rates_then = self._latest.copy(), [*self._rates_then]
        timeline._in_force = copy(self._in_force)
        return timeline

    def moments(self, start: int, count: int) -> DecisionTimes:
        """Return the decision times of collectives start .. start+count-1."""
        done, until, times = self._times.shape[1], start + count, [self._times]
        while done < until:
            size = min(_BLOCK, until - done)
            struck = self._struck(done, size) & self._mode.reroutes
            block = _Block(self._choices, self._mode, self._believed.rates_bps(done, size), struck)
            row = 0
            while row < block.count:
                kept, chooses, embeds = self._advance(block, row, done + row)
                times.append(np.repeat(self._latest[:, None], kept, axis=1))
                row += kept
                if chooses:
                    self._choose(block, row, done + row, embeds=embeds)
                    times.append(self._latest[:, None].copy())
                    row += 1
            done += block.count
        self._times = np.concatenate(times, axis=1)
        embedded, routed = self._times[:, start:until]
        return DecisionTimes(embedded, routed)

    def _advance(self, block: "_Block", row: int, number: int) -> tuple[int, bool, bool]:
        """Advance to the next decision at or after this row, or to the end of the span that was examined. Returns the
        number of collectives that keep the choices in force, whether a choice is made before the next collective, and
        whether that includes the placement."""
        if self._mode.function is not None:
            routes, embeds = self._ask_function(self._mode.function, block, row, number)
            return (0, True, embeds) if routes or embeds or block.struck[row] else (1, False, False)
        rows = slice(row, min(row + self._span, block.until(row)))
        reroutes, reembeds = self._due(block, rows, np.arange(number, number + rows.stop - row))
        first = int((reroutes | reembeds).argmax())
        if reroutes[first] or reembeds[first]:
            self._span = max(1, first)
            return first, True, bool(reembeds[first])
        self._span = min(2 * self._span, _BLOCK)
        return rows.stop - row, False, False

    def _ask_function(self, function: str, block: "_Block", row: int, number: int) -> tuple[bool, bool]:
        """Ask the user's function whether paths, and whether the placement, are chosen before this collective."""

        def seconds(which: str) -> float:
            if which == "kept":
                return float(self._kept_s(block, slice(row, row + 1))[0])
            if which == "rerouted":
                return float(self._in_force.rerouted(block, row, row + 1)[1][0])
            return float(block.seconds[row])

        embedded, routed = self._latest.tolist()
        situation = Situation(number, block.rates_bps[row], embedded=embedded, routed=routed, seconds=seconds)
        return ask(function, situation)

    def _choose(self, block: "_Block", row: int, number: int, *, embeds: bool) -> None:
        """Put the choices of this row into force and record their decision times."""
        if embeds:
            self._latest[0], self._rates_then[0] = number, block.rates_bps[row]
            if self._weighs:
                self._in_force = _InForce(block.placement[row], block.path[row] if self._mode.reroutes else None)
        elif self._weighs:
            self._in_force.path = self._in_force.rerouted(block, row, row + 1)[0][0]
        if self._mode.reroutes:
            self._latest[1], self._rates_then[1] = number, block.rates_bps[row]

    def _due(self, block: "_Block", rows: slice, number: Numbers) -> tuple[Flags, Flags]:
        """Return whether paths, and whether the placement, are due before each of these collectives, [K] each. Each
        collective is evaluated as if nothing were chosen before the earlier ones of `rows`, so only the first due
        decision is valid."""
        reroute, reembed = self._mode.reroute, self._mode.reembed
        rates_bps = block.rates_bps[rows]
        reroutes = self._is_triggered(reroute, 1, number, rates_bps) | block.struck[rows]
        reembeds = self._is_triggered(reembed, 0, number, rates_bps)
        if not self._weighs:
            return reroutes, reembeds
        alternative_s = kept_s = self._kept_s(block, rows)
        if self._mode.reroutes:
            _, rerouted_s = self._in_force.rerouted(block, rows.start, rows.stop)
            if reroute.kind == "gain":
                reroutes = reroutes | self._gains(reroute, kept_s, rerouted_s, self._cost_s(False, True))
            alternative_s = np.where(reroutes, rerouted_s, kept_s)
        if reembed.kind == "gain":
            cost_s = self._cost_s(True, self._mode.reroutes) - np.where(reroutes, self._cost_s(False, True), 0.0)
            reembeds = self._gains(reembed, alternative_s, block.seconds[rows], cost_s)
        return reroutes, reembeds

    def _kept_s(self, block: "_Block", rows: slice) -> Floats:
        """Return the predicted times with the placement and paths in force under the rates of these rows, [K]."""
        rates_bps, in_force = block.rates_bps[rows], self._in_force
        if block.struck[rows.start]:
            return in_force.rerouted(block, rows.start, rows.stop)[1]
        placement = np.tile(in_force.placement, (len(rates_bps), 1))
        if in_force.path is None:
            path = self._choices.paths(placement, rates_bps, chosen=False)
        else:
            path = np.tile(in_force.path, (len(rates_bps), 1))
        return self._choices.seconds(placement, path, rates_bps)

    def _gains(self, when: When, before_s: Floats, after_s: Floats, cost_s: Floats | float) -> Flags:
        """Return whether a `gain` rule triggers, given the times without and with the choice, and its cost; [K]."""
        gain_s = self._horizon * np.maximum(before_s - after_s, 0.0)
        is_enough: Flags = gain_s >= cost_s + (when.number or 0.0) * self._horizon * before_s
        return is_enough

    def _is_triggered(self, when: When, which: int, number: Numbers, rates_bps: Floats) -> Flags:
        """Return whether an `every` or `drift` rule triggers, [K]; `which` is 0 for embedding and 1 for routing."""
        then_bps, share = self._rates_then[which], when.number or 0.0
        if when.kind == "every":
            return np.asarray(when.at(number, self._every))
        if when.kind != "drift":
            return np.full(number.shape, False)
        if then_bps is None:
            return np.full(number.shape, True)
        larger = np.maximum(np.maximum(rates_bps, then_bps), 1.0)  # 1 bit/s: a link that stays down has no drift
        has_drifted: Flags = (np.abs(rates_bps - then_bps) / larger).mean(axis=1) >= share
        return has_drifted


class _Block:
    """A batch of K consecutive collectives: their believed rates [K, links], whether cables failed or came back before
    each (`struck`, [K]), and, computed when first needed, the choices that would be made under the rates of each."""

    def __init__(self, choices: Choices, mode: Mode, rates_bps: Floats, struck: Flags) -> None:
        self.choices, self._mode, self.rates_bps, self.count = choices, mode, rates_bps, len(rates_bps)
        self.struck = struck

    def until(self, row: int) -> int:
        """Return the row at which the set of failed cables next changes; row + 1 if it has changed at this one."""
        if self.struck[row]:
            return row + 1
        later = np.flatnonzero(self.struck[row:])
        return row + int(later[0]) if later.size else self.count

    @cached_property
    def placement(self) -> Ranks:
        """The placement that would be chosen under each row's rates, [K, n]."""
        return self.choices.placements(self.rates_bps)

    @cached_property
    def path(self) -> Ranks:
        """The paths with those placements, [K, F]."""
        return self.choices.paths(self.placement, self.rates_bps, chosen=self._mode.reroutes)

    @cached_property
    def seconds(self) -> Floats:
        """The predicted times with those placements and paths, [K] seconds."""
        return self.choices.seconds(self.placement, self.path, self.rates_bps)


class _InForce:
    """The placement [n] in force with its paths [F]; None stands for the fixed paths."""

    def __init__(self, placement: Ranks, path: Ranks | None) -> None:
        self.placement, self.path = placement, path
        self._block: _Block | None = None  # the block of the cached paths and times, and their first row
        self._begin = 0
        self._cached: tuple[Ranks, Floats] | None = None

    def rerouted(self, block: _Block, begin: int, end: int) -> tuple[Ranks, Floats]:
        """Return the paths that would be chosen for this placement under the rates of these rows, [K, F], and the
        predicted times with them, [K] seconds. Callers often need single rows in turn, so at least _AHEAD rows are
        computed at once and cached."""
        if self._cached is None or self._block is not block or end > self._begin + len(self._cached[1]):
            rates_bps = block.rates_bps[begin : max(end, begin + _AHEAD)]
            placement = np.tile(self.placement, (len(rates_bps), 1))
            path = block.choices.paths(placement, rates_bps, chosen=True)
            self._cached = path, block.choices.seconds(placement, path, rates_bps)
            self._block, self._begin = block, begin
        path, seconds = self._cached
        rows = slice(begin - self._begin, end - self._begin)
        return path[rows], seconds[rows]
