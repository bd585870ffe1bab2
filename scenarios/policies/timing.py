"""Decision times: for each collective, the index of the collective before which its placement and paths were chosen.

Periodic policies have a closed formula (`periodic`). For all others the decision times depend on the believed
conditions and on the choices in force, so they are computed collective by collective from the first one (`Course`).
"""

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt

from scenarios.policies.own import Situation, answer
from scenarios.policies.policy import Mode, When
from topologies.conditions.sampler import Sampler

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int64]
Ranks = npt.NDArray[np.int16]

_BLOCK = 256  # collectives evaluated in one batch
_AHEAD = 16  # rows for which re-routing is evaluated at least, so that the next queries are answered from memory


@dataclass(frozen=True)
class Moments:
    """For K consecutive collectives, before which collective placement and paths were chosen, [K] each; -1: never."""

    embedded: Numbers
    routed: Numbers


class Choices(Protocol):
    """The choices open to a policy, with the times that the model predicts for them (`decide.Chooser`)."""

    def placements(self, rates_bps: Floats) -> Ranks:
        """Return the placement chosen under each row of rates [K, links]: [K, n]."""

    def paths(self, placement: Ranks, rates_bps: Floats, *, chosen: bool) -> Ranks:
        """Return the path of every flow, [K, F]: the ones chosen under these rates, or the fixed ones."""

    def seconds(self, placement: Ranks, path: Ranks, rates_bps: Floats) -> Floats:
        """Return the predicted completion times with this placement and these paths under these rates, [K] seconds."""

    @property
    def in_order(self) -> Ranks:
        """The default placement, [n], used until one is chosen."""


def periodic(mode: Mode, reembed_every: int, start: int, count: int) -> Moments:
    """Return the decision times of a periodic mode for collectives start .. start+count-1."""
    number, never = np.arange(start, start + count), np.full(count, -1)
    embedded = _last(mode.reembed, number, reembed_every) if mode.reembeds else never
    routed = np.maximum(_last(mode.reroute, number, reembed_every), embedded) if mode.reroutes else never
    return Moments(embedded, routed)


def _last(when: When, number: Numbers, reembed_every: int) -> Numbers:
    every = when.period(reembed_every)
    return number // every * every


class Course:
    """The decision times of any mode under believed conditions, computed from collective 0 on and extended on demand.

    `cost_s(embeds, routes)` is the assumed cost of re-embedding, re-routing or both; `placement`, [n], is in force
    before the first collective (default: `choices.in_order`).

    The *gain* of a choice is the predicted reduction of a collective's time under the believed conditions, at least 0,
    times the `horizon` in collectives. The choice is made if its gain is at least its cost plus SHARE of the time that
    those collectives take without it. Re-routing is compared with the placement and paths in force. Re-embedding, with
    the new paths that it implies, is compared with keeping the placement and doing any re-routing that is due.

    `struck(start, count)` tells for consecutive collectives whether the set of failed cables differs from that of the
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
        self._known = np.empty((2, 0), dtype=np.int64)  # decision times so far: row 0 embedding, row 1 routing
        self._last = np.array([-1, -1])  # the latest embedding and routing decision
        self._basis: list[Floats | None] = [None, None]  # the believed rates [links] at those decisions
        self._force = _InForce(choices.in_order if placement is None else placement, None)
        self._span = 1

    def copy(self) -> "Course":
        """Return an independent copy, which can be extended without changing this course."""
        found = copy(self)
        found._last, found._basis, found._force = self._last.copy(), [*self._basis], copy(self._force)
        return found

    def moments(self, start: int, count: int) -> Moments:
        """Return the decision times of collectives start .. start+count-1."""
        done, until, found = self._known.shape[1], start + count, [self._known]
        while done < until:
            number = min(_BLOCK, until - done)
            struck = self._struck(done, number) & self._mode.reroutes
            block = _Block(self._choices, self._mode, self._believed.rates_bps(done, number), struck)
            row = 0
            while row < block.count:
                kept, acts, embeds = self._next(block, row, done + row)
                found.append(np.repeat(self._last[:, None], kept, axis=1))
                row += kept
                if acts:
                    self._choose(block, row, done + row, embeds=embeds)
                    found.append(self._last[:, None].copy())
                    row += 1
            done += block.count
        self._known = np.concatenate(found, axis=1)
        embedded, routed = self._known[:, start:until]
        return Moments(embedded, routed)

    def _next(self, block: "_Block", row: int, number: int) -> tuple[int, bool, bool]:
        """Advance to the next decision at or after this row, or to the end of the span that was examined.

        Returns the number of collectives that keep the choices in force, whether a choice is made before the next
        collective, and whether that includes the placement.
        """
        if self._mode.function is not None:
            routes, embeds = self._asked(self._mode.function, block, row, number)
            return (0, True, embeds) if routes or embeds or block.struck[row] else (1, False, False)
        rows = slice(row, min(row + self._span, block.until(row)))
        due, anew = self._due(block, rows, np.arange(number, number + rows.stop - row))
        first = int((due | anew).argmax())
        if due[first] or anew[first]:
            self._span = max(1, first)
            return first, True, bool(anew[first])
        self._span = min(2 * self._span, _BLOCK)
        return rows.stop - row, False, False

    def _asked(self, function: str, block: "_Block", row: int, number: int) -> tuple[bool, bool]:
        """Ask the user's function whether paths, and whether the placement, are chosen before this collective."""

        def seconds(which: str) -> float:
            if which == "kept":
                return float(self._keeping_s(block, slice(row, row + 1))[0])
            return float(block.seconds[row] if which == "anew" else self._force.over(block, row, row + 1)[1][0])

        embedded, routed = (int(last) for last in self._last)
        situation = Situation(number, block.rates_bps[row], embedded=embedded, routed=routed, seconds=seconds)
        return answer(function, situation)

    def _choose(self, block: "_Block", row: int, number: int, *, embeds: bool) -> None:
        if embeds:
            self._last[0], self._basis[0] = number, block.rates_bps[row]
            if self._weighs:
                self._force = _InForce(block.placement[row], block.path[row] if self._mode.reroutes else None)
        elif self._weighs:
            self._force.path = self._force.over(block, row, row + 1)[0][0]
        if self._mode.reroutes:
            self._last[1], self._basis[1] = number, block.rates_bps[row]

    def _due(self, block: "_Block", rows: slice, number: Numbers) -> tuple[Flags, Flags]:
        """Return whether paths, and whether the placement, are due before each of these collectives, [K] each.

        Each collective is evaluated as if nothing were chosen before the earlier ones of `rows`, so only the first due
        decision is valid.
        """
        reroute, reembed = self._mode.reroute, self._mode.reembed
        rates_bps = block.rates_bps[rows]
        routes = self._apart(reroute, 1, number, rates_bps) | block.struck[rows]
        embeds = self._apart(reembed, 0, number, rates_bps)
        if not self._weighs:
            return routes, embeds
        otherwise_s = keeping_s = self._keeping_s(block, rows)
        if self._mode.reroutes:
            _, rerouted_s = self._force.over(block, rows.start, rows.stop)
            if reroute.kind == "gain":
                routes = routes | self._gains(reroute, keeping_s, rerouted_s, self._cost_s(False, True))
            otherwise_s = np.where(routes, rerouted_s, keeping_s)
        if reembed.kind == "gain":
            cost_s = self._cost_s(True, self._mode.reroutes) - np.where(routes, self._cost_s(False, True), 0.0)
            embeds = self._gains(reembed, otherwise_s, block.seconds[rows], cost_s)
        return routes, embeds

    def _keeping_s(self, block: "_Block", rows: slice) -> Floats:
        """Return the predicted times with the placement and paths in force under the rates of these rows, [K]."""
        rates_bps, force = block.rates_bps[rows], self._force
        if block.struck[rows.start]:
            return force.over(block, rows.start, rows.stop)[1]
        placement = np.tile(force.placement, (len(rates_bps), 1))
        if force.path is None:
            path = self._choices.paths(placement, rates_bps, chosen=False)
        else:
            path = np.tile(force.path, (len(rates_bps), 1))
        return self._choices.seconds(placement, path, rates_bps)

    def _gains(self, when: When, before_s: Floats, after_s: Floats, cost_s: Floats | float) -> Flags:
        gain_s = self._horizon * np.maximum(before_s - after_s, 0.0)
        found: Flags = gain_s >= cost_s + (when.number or 0.0) * self._horizon * before_s
        return found

    def _apart(self, when: When, which: int, number: Numbers, rates_bps: Floats) -> Flags:
        """Return whether an `every` or `drift` rule triggers, [K]; `which` is 0 for embedding and 1 for routing."""
        basis, share = self._basis[which], when.number or 0.0
        if when.kind == "every":
            return np.asarray(when.at(number, self._every))
        if when.kind != "drift":
            return np.full(number.shape, False)
        if basis is None:
            return np.full(number.shape, True)
        larger = np.maximum(np.maximum(rates_bps, basis), 1.0)  # 1 bit/s: two links that are down have not drifted
        found: Flags = (np.abs(rates_bps - basis) / larger).mean(axis=1) >= share
        return found


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
        self._of: _Block | None = None
        self._begin = 0
        self._over: tuple[Ranks, Floats] | None = None

    def over(self, block: _Block, begin: int, end: int) -> tuple[Ranks, Floats]:
        """Return the paths that would be chosen for this placement under the rates of these rows, [K, F], and the
        predicted times with them, [K] seconds.

        Callers often ask row by row, so at least _AHEAD rows are computed at once and cached.
        """
        if self._over is None or self._of is not block or end > self._begin + len(self._over[1]):
            rates_bps = block.rates_bps[begin : max(end, begin + _AHEAD)]
            placement = np.tile(self.placement, (len(rates_bps), 1))
            path = block.choices.paths(placement, rates_bps, chosen=True)
            self._over = path, block.choices.seconds(placement, path, rates_bps)
            self._of, self._begin = block, begin
        rows = slice(begin - self._begin, end - self._begin)
        return self._over[0][rows], self._over[1][rows]
