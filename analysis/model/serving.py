"""Requests to a language model that two sites serve: the times of their first tokens, and of their ends.

The local site prefills and decodes; the remote one only prefills, and sends the cache of keys and values over the WAN,
whose rate is divided equally among the caches that are under way. In each site a pool of servers prefills, in the order
of arrival. A request is decoded in one of the local slots, in the order in which caches are there, and has its first
token when it has been there for one token's time.

One local server with free decoding is the queue M/G/1 for Poisson arrivals.
"""

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Request:
    """When a request arrives (s), and how many tokens it brings and gets."""

    arrival_s: float
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True, kw_only=True)
class Serving:
    """Two sites: servers of the pools that prefill, the time of one for a token (s), bytes of the cache of a token, the
    WAN's rate (bit/s) and delay (s), slots that decode, and the time of a token there (s)."""

    local_servers: int
    remote_servers: int
    local_token_s: float
    remote_token_s: float
    cache_bytes: float
    wan_bps: float
    wan_delay_s: float
    slots: int
    token_s: float


@dataclass(frozen=True, kw_only=True)
class Offer:
    """What a rule may look at when a request arrives: its tokens; when its cache would be in the local site (s from
    now) if it is prefilled there, or in the remote site; and of the latter the time for which the cache would wait for
    those that are ready before it, and be sent. The estimate sends caches one after another; in fact they share the
    WAN."""

    input_tokens: int
    output_tokens: int
    local_s: float
    remote_s: float
    wan_wait_s: float
    wan_s: float


Rule = Callable[[Offer], bool]
"""Tells whether a request is prefilled in the remote site."""

RULES: dict[str, Rule] = {
    "local": lambda offer: False,
    "remote": lambda offer: True,
    "selective": lambda offer: offer.remote_s < offer.local_s,
}


@dataclass(frozen=True, kw_only=True)
class Prefilled:
    """Where each request is prefilled, by which server of that site's pool, and when that is done (s)."""

    is_remote: Sequence[bool]
    server: Sequence[int]
    done_s: Sequence[float]


@dataclass(frozen=True, kw_only=True)
class Served:
    """The times of requests: from arrival to the first token, and the instants of their ends (s)."""

    first_token_s: "np.ndarray[tuple[int], np.dtype[np.float64]]"
    end_s: "np.ndarray[tuple[int], np.dtype[np.float64]]"


def poisson(
    count: int, *, per_s: float, input_tokens: float, output_tokens: float, seed: int | Sequence[int]
) -> list[Request]:
    """Return requests that arrive at random, with exponentially distributed tokens, at least one, of these means."""
    draws = np.random.default_rng(seed)
    arrivals_s = draws.exponential(1 / per_s, count).cumsum()
    inputs, outputs = (np.ceil(draws.exponential(mean, count)) for mean in (input_tokens, output_tokens))
    return [
        Request(float(arrival), max(1, int(brought)), max(1, int(gets)))
        for arrival, brought, gets in zip(arrivals_s, inputs, outputs, strict=True)
    ]


def prefill(requests: Sequence[Request], serving: Serving, rule: Rule) -> Prefilled:
    """Ask the rule for each request, in the order of arrival, and return what follows for the pools."""
    free = {
        where: [(0.0, server) for server in range(count)]
        for where, count in ((False, serving.local_servers), (True, serving.remote_servers))
    }
    wan_free_s, is_remote, servers, done_s = 0.0, list[bool](), list[int](), list[float]()
    for request in requests:
        ends_s = {}
        for where, token_s in ((False, serving.local_token_s), (True, serving.remote_token_s)):
            # An order crosses the WAN before the remote site knows of a request.
            known_s = request.arrival_s + (serving.wan_delay_s if where else 0.0)
            begin_s = max(known_s, free[where][0][0]) if free[where] else float("inf")
            ends_s[where] = begin_s + request.input_tokens * token_s
        wan_s = request.input_tokens * serving.cache_bytes * 8 / serving.wan_bps
        wan_wait_s = max(0.0, wan_free_s - ends_s[True])
        offer = Offer(
            input_tokens=request.input_tokens,
            output_tokens=request.output_tokens,
            local_s=ends_s[False] - request.arrival_s,
            remote_s=ends_s[True] + wan_wait_s + wan_s + serving.wan_delay_s - request.arrival_s,
            wan_wait_s=wan_wait_s,
            wan_s=wan_s,
        )
        where = rule(offer)
        server = free[where][0][1]
        heapq.heapreplace(free[where], (ends_s[where], server))
        servers.append(server)
        if where:
            wan_free_s = max(wan_free_s, ends_s[True]) + wan_s
        is_remote.append(where)
        done_s.append(ends_s[where])
    return Prefilled(is_remote=is_remote, server=servers, done_s=done_s)


def transfers_s(begin_s: Sequence[float], sizes: Sequence[float], *, rate_bps: float, delay_s: float) -> list[float]:
    """Return when messages (bytes) that begin at these instants have arrived, if a link divides its rate equally."""
    order = sorted(range(len(sizes)), key=lambda one: begin_s[one])
    arrived_s, active = [0.0] * len(sizes), list[tuple[float, int]]()
    now_s = each = 0.0  # `each`: bytes that every message that has been under way since the start would have sent
    for number in [*order, None]:
        until_s = float("inf") if number is None else begin_s[number]
        while active:
            left_s = (active[0][0] - each) * len(active) * 8 / rate_bps
            if now_s + left_s > until_s:
                break
            now_s, (each, ended) = now_s + left_s, heapq.heappop(active)
            arrived_s[ended] = now_s + delay_s
        if number is not None:
            each += (until_s - now_s) * rate_bps / 8 / len(active) if active else 0.0
            now_s = until_s
            heapq.heappush(active, (each + sizes[number], number))
    return arrived_s


def remote_caches(
    requests: Sequence[Request], serving: Serving, prefilled: Prefilled
) -> Iterator[tuple[int, float, float]]:
    """Yield the number of each request that is prefilled remotely, when its cache is done (s), and its bytes."""
    for number, (request, is_remote, done) in enumerate(
        zip(requests, prefilled.is_remote, prefilled.done_s, strict=True)
    ):
        if is_remote:
            yield number, done, request.input_tokens * serving.cache_bytes


def served(
    requests: Sequence[Request], serving: Serving, prefilled: Prefilled, arrived_s: dict[int, float] | None = None
) -> Served:
    """Return the times of requests. `arrived_s` has the instants at which caches of the remote site were there, by
    request; without it they are predicted."""
    if arrived_s is None:
        caches = [*remote_caches(requests, serving, prefilled)]
        instants = transfers_s(
            [begin for _, begin, _ in caches],
            [size for *_, size in caches],
            rate_bps=serving.wan_bps,
            delay_s=serving.wan_delay_s,
        )
        arrived_s = {number: instant for (number, *_), instant in zip(caches, instants, strict=True)}
    there_s = [arrived_s.get(number, done) for number, done in enumerate(prefilled.done_s)]
    decode_s = [request.output_tokens * serving.token_s for request in requests]
    begin_s = np.array(decoding_s(there_s, decode_s, serving.slots))
    arrivals_s = np.array([request.arrival_s for request in requests])
    return Served(first_token_s=begin_s + serving.token_s - arrivals_s, end_s=begin_s + np.array(decode_s))


def decoding_s(there_s: Sequence[float], decode_s: Sequence[float], slots: int) -> list[float]:
    """Return when each request begins to be decoded: in the order in which caches are there, and as soon as one of the
    slots is free, in which it stays for its `decode_s`."""
    free_s, begin_s = [0.0] * min(slots, len(there_s)), [0.0] * len(there_s)
    for number in sorted(range(len(there_s)), key=lambda one: (there_s[one], one)):
        begin_s[number] = max(there_s[number], free_s[0])
        heapq.heapreplace(free_s, begin_s[number] + decode_s[number])
    return begin_s


def loads(requests: Sequence[Request], serving: Serving, prefilled: Prefilled) -> dict[str, float]:
    """Return how much of each resource requests ask for, by the time in which they arrive, as a share of what there is:
    above 1, the times of requests grow with their number. Empty if all arrive at once."""
    span_s = requests[-1].arrival_s - requests[0].arrival_s
    inputs = {
        where: sum(
            request.input_tokens
            for request, is_remote in zip(requests, prefilled.is_remote, strict=True)
            if is_remote is where
        )
        for where in (False, True)
    }
    asked_s = {
        "local servers": inputs[False] * serving.local_token_s / serving.local_servers,
        "remote servers": inputs[True] * serving.remote_token_s / serving.remote_servers,
        "the WAN": inputs[True] * serving.cache_bytes * 8 / serving.wan_bps,
        "decoding": sum(request.output_tokens for request in requests) * serving.token_s / serving.slots,
    }
    return {name: asked / span_s for name, asked in asked_s.items() if span_s}
