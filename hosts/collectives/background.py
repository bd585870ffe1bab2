"""Background traffic: messages that GPUs send each other at times of their own, whatever becomes of them."""

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from hosts.collectives.kinds import MESSAGES, Workload
from hosts.collectives.schedule import Flow, Schedule, ScheduleError, Stream, Transfer

MOST_MESSAGES = 20_000
_BURST = 8  # messages of an on-off source while it is on, on average
_SHARE_ON = 0.5  # of the time, on average

Message = tuple[float, int, int]
"""When it is sent, s, to which place, and its bytes."""


def background(
    pattern: str, *, places: int, rate_bps: float, message_bytes: int, duration_s: float, seed: tuple[int, ...]
) -> Workload:
    """Messages of every place to others for so long, at `rate_bps` a place on average, as one schedule.

    The patterns, of which each place has one of its own:

        permutation   to one other place, which receives from no third, messages of `message_bytes` evenly spaced
        poisson       at exponential gaps, to any other place, of exponential sizes with the mean `message_bytes`
        on-off        bursts of evenly spaced messages of `message_bytes` to any other place, at twice the rate for an
                      exponential time and silence for another (8 messages' time each, on average)

    A function of its arguments alone. Raises ScheduleError for another pattern, fewer than two places, and where there
    would be no message or more than MOST_MESSAGES.
    """
    if pattern not in PATTERNS or places < 2:
        raise ScheduleError(
            f"background traffic {pattern!r} between {places} GPUs; allowed: {', '.join(PATTERNS)}, and 2 or more"
        )
    gap_s = 8 * message_bytes / rate_bps
    wanted = places * duration_s / gap_s
    if wanted > MOST_MESSAGES:
        raise ScheduleError(
            f"background traffic of about {wanted:,.0f} messages; allowed: {MOST_MESSAGES:,}, so a lower rate, a "
            "shorter duration or larger messages"
        )
    messages: list[tuple[float, Flow, int]] = []
    partner = _cycle(np.random.default_rng(seed), places)
    for place in range(places):
        others = [other for other in range(places) if other != place]
        for at_s, choice, size in PATTERNS[pattern](np.random.default_rng((*seed, place)), gap_s, message_bytes):
            if at_s >= duration_s:
                break
            dst = partner[place] if choice < 0 else others[choice % len(others)]
            messages.append((at_s, Flow(place, dst), size))
    if not messages:
        raise ScheduleError(
            f"background traffic of a message every {gap_s:g} s for {duration_s:g} s; allowed: one message at least"
        )
    return timed(messages, places=places, algorithm=pattern)


def timed(messages: Iterable[tuple[float, Flow, int]], *, places: int, algorithm: str) -> Workload:
    """Messages of these flows and bytes, each at its time, s, which rises from message to message of a place.

    A place's processor is its clock: a message waits for a computation that lasts until its time, and then for the
    messages before it on its flow.
    """
    flows: dict[Flow | Stream, int] = {}
    transfers: list[Transfer] = []
    now_ns = [0] * places
    for at_s, flow, size in messages:
        at_ns = round(at_s * 1e9)
        clock = flows.setdefault(Stream(flow.src), len(flows))
        transfers.append(Transfer(flow=clock, size=(at_ns - now_ns[flow.src]) / 1e9))
        index = flows.setdefault(flow, len(flows))
        transfers.append(Transfer(flow=index, size=size, after=(len(transfers) - 1,)))
        now_ns[flow.src] = at_ns
    return Workload(
        kind=MESSAGES,
        algorithm=algorithm,
        schedule=Schedule(places=places, slots=0, flows=tuple(flows), transfers=tuple(transfers)),
        slot_bytes=1,
    )


def _cycle(random: np.random.Generator, places: int) -> list[int]:
    """Where each place sends in a permutation of one cycle: to no place itself, and from each to one."""
    order = random.permutation(places).tolist()
    return [order[(order.index(place) + 1) % places] for place in range(places)]


def _evenly(random: np.random.Generator, gap_s: float, size: int) -> Iterator[Message]:
    """To the partner, at a phase of its own."""
    at_s = gap_s * random.random()
    while True:
        yield at_s, -1, size
        at_s += gap_s


def _poisson(random: np.random.Generator, gap_s: float, size: int) -> Iterator[Message]:
    at_s = random.exponential(gap_s)
    while True:
        yield at_s, int(random.integers(1 << 31)), max(1, round(random.exponential(size)))
        at_s += random.exponential(gap_s)


def _on_off(random: np.random.Generator, gap_s: float, size: int) -> Iterator[Message]:
    mean_s, step_s = _BURST * gap_s * _SHARE_ON, gap_s * _SHARE_ON
    at_s = random.exponential(mean_s) * random.integers(2)  # it begins silent, or not
    while True:
        ends_s, dst = at_s + random.exponential(mean_s), int(random.integers(1 << 31))
        while at_s < ends_s:
            yield at_s, dst, size
            at_s += step_s
        at_s = max(at_s, ends_s) + random.exponential(mean_s)


PATTERNS: dict[str, Callable[[np.random.Generator, float, int], Iterator[Message]]] = {
    "permutation": _evenly,
    "poisson": _poisson,
    "on-off": _on_off,
}
"""Each pattern's messages of a place without end: when, to which of the others (-1 for the partner), and bytes."""
