"""Background traffic: messages that GPUs send each other at predetermined times (open loop)."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import permutations
from types import MappingProxyType

import numpy as np

from hosts.collectives.kinds import MESSAGES, Workload
from hosts.collectives.schedule import Flow, Schedule, ScheduleError, Stream, Transfer

MAX_MESSAGES = 20_000
MATRIX = "matrix"
"""The pattern of traffic whose rates from site to site are those of a traffic matrix, not one of PATTERNS."""
_BURST = 8  # mean number of messages in a burst of an on-off source
_SHARE_ON = 0.5  # mean fraction of time for which an on-off source is on

Message = tuple[float, int, int]
"""The time in s at which a message is sent, its destination (see `PATTERNS`), and its bytes."""


def background(
    pattern: str, *, places: int, rate_bps: float, message_bytes: int, duration_s: float, seed: tuple[int, ...]
) -> Workload:
    """Return background traffic as one schedule: every place sends `rate_bps` on average for `duration_s`.

    Each place follows the pattern independently:

        permutation   evenly spaced messages of `message_bytes` to one other place, which receives from no third
        poisson       messages with exponential gaps and exponential sizes of mean `message_bytes`, each to a random
                      other place
        on-off        bursts of evenly spaced messages of `message_bytes`, each burst to a random other place at twice
                      the rate; bursts and the silences between them last exponential times (mean: 8 messages' time)

    The result depends on the arguments alone, and its flows only on `places`: one between any two of them, so that all
    draws of the same traffic have the same flows. Raises ScheduleError for an unknown pattern, for fewer than two
    places, and for less than one message on average or more than MAX_MESSAGES. A draw may have none.
    """
    if pattern not in PATTERNS or places < 2:
        raise ScheduleError(
            f"background traffic {pattern!r} between {places} GPUs; allowed: {', '.join(PATTERNS)}, and 2 or more"
        )
    gap_s = 8 * message_bytes / rate_bps
    expected = places * duration_s / gap_s
    if expected > MAX_MESSAGES:
        raise ScheduleError(
            f"background traffic of about {expected:,.0f} messages; allowed: {MAX_MESSAGES:,}, so a lower rate, a "
            "shorter duration or larger messages"
        )
    if expected < 1:
        raise ScheduleError(
            f"background traffic of {expected:.2g} messages on average; allowed: one at least, so a higher rate, a "
            "longer duration or smaller messages"
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
    streams = [Stream(place) for place in range(places)]
    pairs = [Flow(src, dst) for src, dst in permutations(range(places), 2)]
    return timed(messages, places=places, algorithm=pattern, among=(*streams, *pairs))


def matrix_traffic(
    bps: Sequence[Sequence[float]],
    *,
    sites: Sequence[int],
    message_bytes: int,
    duration_s: float,
    seed: tuple[int, ...],
) -> Workload:
    """Return traffic between sites as one schedule: evenly spaced messages, from a random phase on, for `duration_s`.

    `bps` is what is sent from site to site, which the places of both, whose sites are `sites`, share: the first place
    of a site sends to the first one of another, and so on, and where one of the two has fewer places, it begins again.
    The flows depend only on `sites`. Raises ScheduleError for more than MAX_MESSAGES. There may be none.
    """
    expected = sum(map(sum, bps)) * duration_s / 8 / message_bytes
    if expected > MAX_MESSAGES:
        raise ScheduleError(
            f"a matrix of about {expected:,.0f} messages; allowed: {MAX_MESSAGES:,}, so a shorter duration or larger "
            "messages"
        )
    draws, messages, flows = np.random.default_rng(seed), list[tuple[float, Flow, int]](), list[Flow]()
    for src, dst in permutations(dict.fromkeys(sites), 2):
        own, others = ([place for place, site in enumerate(sites) if site == which] for which in (src, dst))
        pairs = [
            Flow(own[index % len(own)], others[index % len(others)]) for index in range(max(len(own), len(others)))
        ]
        flows += pairs
        phases = draws.random(len(pairs))  # drawn without traffic, too: each pair has the same phase in every matrix
        if bps[src][dst] > 0:
            gap_s = 8 * message_bytes * len(pairs) / bps[src][dst]
            for flow, phase in zip(pairs, phases.tolist(), strict=True):
                count = int(np.ceil(duration_s / gap_s - phase))
                messages += [(gap_s * (phase + number), flow, message_bytes) for number in range(count)]
    streams = [Stream(place) for place in range(len(sites))]
    return timed(
        sorted(messages, key=lambda one: one[0]), places=len(sites), algorithm=MATRIX, among=(*streams, *flows)
    )


def timed(
    messages: Iterable[tuple[float, Flow, int]],
    *,
    places: int,
    algorithm: str,
    among: Iterable[Flow | Stream] = (),
    until_s: Mapping[int, float] = MappingProxyType({}),
) -> Workload:
    """Return a workload of timed messages: (time in s, flow, bytes), with ascending times for each source place. Its
    flows begin with those in `among`, whether or not they have a message.

    A place's computation stream is its clock: each message depends on a computation that ends at the message's time,
    and is sent after the earlier messages on its flow. A place of `until_s` computes until then, which is not before
    its last message.
    """
    flows: dict[Flow | Stream, int] = {flow: index for index, flow in enumerate(among)}
    transfers: list[Transfer] = []
    now_ns = [0] * places
    for at_s, flow, size in messages:
        at_ns = round(at_s * 1e9)
        clock = flows.setdefault(Stream(flow.src), len(flows))
        transfers.append(Transfer(flow=clock, size=(at_ns - now_ns[flow.src]) / 1e9))
        index = flows.setdefault(flow, len(flows))
        transfers.append(Transfer(flow=index, size=size, after=(len(transfers) - 1,)))
        now_ns[flow.src] = at_ns
    for place, at_s in until_s.items():
        clock = flows.setdefault(Stream(place), len(flows))
        transfers.append(Transfer(flow=clock, size=(round(at_s * 1e9) - now_ns[place]) / 1e9))
    return Workload(
        kind=MESSAGES,
        algorithm=algorithm,
        schedule=Schedule(places=places, slots=0, flows=tuple(flows), transfers=tuple(transfers)),
        slot_bytes=1,
    )


def _cycle(random: np.random.Generator, places: int) -> list[int]:
    """Return each place's destination in a random cyclic permutation of all places, so that none sends to itself."""
    order = random.permutation(places).tolist()
    return [order[(order.index(place) + 1) % places] for place in range(places)]


def _evenly(random: np.random.Generator, gap_s: float, size: int) -> Iterator[Message]:
    """Yield evenly spaced messages to the partner, with a random phase."""
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
    at_s = random.exponential(mean_s) * random.integers(2)  # begin with a silence or with a burst
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
"""For each pattern, the endless messages of one place from (generator, gap in s, bytes): time in s, destination, bytes.

A destination >= 0 is an index into the other places, modulo their number; -1 is the partner in the permutation."""
