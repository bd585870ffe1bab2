"""Jobs of requests to a language model that two sites serve (`analysis.model.serving`), as messages of a round.

The GPUs of the first rank's site prefill and decode; those of other sites only prefill, and send the cache of keys and
values to one of the first. Each GPU prefills one request at a time. A cache is sent when its prefill is done, whatever
the network does (open loop), so that a round's messages are known before it begins. Decoding sends nothing, and follows
from when caches were there.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from analysis.model.serving import Prefilled, Request, Serving, decoding_s, poisson, prefill, remote_caches
from hosts.collectives.background import timed
from hosts.collectives.kinds import FirstTokens, Workload
from hosts.collectives.schedule import Flow, ScheduleError, Stream
from scenarios.policies.serving_rule import rule_of
from scenarios.spec.jobs import JobSpec
from scenarios.spec.request_trace import read

Floats = npt.NDArray[np.float64]


def requests_workload(
    job: JobSpec, site_of_rank: Sequence[int], *, number: int, seed: tuple[int, ...]
) -> tuple[Workload, FirstTokens]:
    """Return a job's messages of the round of this number, drawn from `seed` or of the job's trace, and what their
    arrivals tell of first tokens.

    `site_of_rank` has the site of each of the job's ranks, the places of the workload; the result has the same flows
    in every round. Raises ScheduleError if all ranks are in one site, and for a rule or a trace that is wrong.
    """
    local, remote = (
        [place for place, site in enumerate(site_of_rank) if (site == site_of_rank[0]) is is_local]
        for is_local in (True, False)
    )
    if not remote:
        raise ScheduleError("requests are served by the GPUs of one site; allowed: ranks of two sites or more")
    assert job.requests is not None and job.cache_bytes is not None and job.rule is not None
    assert job.local_token_s is not None and job.remote_token_s is not None
    serving = Serving(
        local_servers=len(local),
        remote_servers=len(remote),
        local_token_s=job.local_token_s,
        remote_token_s=job.remote_token_s,
        cache_bytes=job.cache_bytes,
        wan_bps=job.rate_bps or math.inf,
        wan_delay_s=job.order_s,
        slots=job.slots or job.requests,
        token_s=job.token_s,
    )
    requests = _requests(job, number, seed)
    try:
        prefilled = prefill(requests, serving, rule_of(job.rule, "rule")())
    except ValueError as error:
        raise ScheduleError(str(error)) from None
    messages = sorted(_caches(requests, prefilled, serving, local, remote))
    workload = timed(
        ((at_s, flow, size) for at_s, _, flow, size in messages),
        places=len(site_of_rank),
        algorithm=job.rule,
        among=[*(Flow(src, dst) for src in remote for dst in local), *map(Stream, (*local, *remote))],
        until_s=_lasts_s(prefilled, local),
    )
    workload = replace(workload, groups=())  # the ranks' servers stay where they are
    sent = [index for index, transfer in enumerate(workload.schedule.transfers) if transfer.after]
    return workload, FirstTokens(
        percentile=job.percentile,
        token_s=job.token_s,
        slots=job.slots,
        arrivals_s=tuple(request.arrival_s for request in requests),
        there_s=tuple(
            math.inf if is_remote else done_s
            for is_remote, done_s in zip(prefilled.is_remote, prefilled.done_s, strict=True)
        ),
        output_tokens=tuple(request.output_tokens for request in requests),
        caches=tuple(zip(sent, (number for _, number, *_ in messages), strict=True)),
    )


class ServedTimes(NamedTuple):
    """Of a job's requests in K rounds, [K] each: the percentile of their times to first token (s), the median of these,
    and how many requests are served a second, from the first one's arrival to the last one's last token."""

    first_token_s: Floats
    first_token_p50_s: Floats
    requests_per_s: Floats


def served_times(tokens: FirstTokens, arrives_s: Floats) -> ServedTimes:
    """Return what the arrivals of all of a job's transfers, [T, K] s from the job's start, tell of its requests."""
    there_s = np.repeat(np.array(tokens.there_s)[:, None], arrives_s.shape[1], axis=1)
    for transfer, number in tokens.caches:
        there_s[number] = arrives_s[transfer]
    decode_s = np.array(tokens.output_tokens) * tokens.token_s
    begin_s = there_s
    if tokens.slots is not None:
        by_round = [decoding_s(each, decode_s.tolist(), tokens.slots) for each in there_s.T.tolist()]
        begin_s = np.array(by_round).T
    waits_s = begin_s - np.array(tokens.arrivals_s)[:, None] + tokens.token_s
    at_percentile_s, median_s = np.percentile(waits_s, (tokens.percentile, 50), axis=0)
    lasts_s = (begin_s + decode_s[:, None]).max(axis=0) - tokens.arrivals_s[0]
    return ServedTimes(at_percentile_s, median_s, len(there_s) / lasts_s)


def demand_bps(job: JobSpec, ranks: int) -> float:
    """Return the rate that each flow of a job wants if all its requests are prefilled remotely, at most."""
    assert job.cache_bytes is not None
    if job.trace is not None:
        requests = _of_trace(job.trace)
        span_s = requests[-1].arrival_s - requests[0].arrival_s
        tokens_per_s = sum(one.input_tokens for one in requests) / span_s if span_s else math.inf
    else:
        assert job.per_second is not None and job.input_tokens is not None
        tokens_per_s = job.per_second * job.input_tokens
    return 8 * tokens_per_s * job.cache_bytes / max(1, ranks - 1)


def _requests(job: JobSpec, number: int, seed: tuple[int, ...]) -> list[Request]:
    """Return the requests of a round: drawn, or the next ones of the trace, which begins again after its last one."""
    assert job.requests is not None
    if job.trace is None:
        assert job.per_second is not None and job.input_tokens is not None
        drawn = {"per_s": job.per_second, "input_tokens": job.input_tokens, "output_tokens": job.output_tokens}
        return poisson(job.requests, **drawn, seed=list(seed))
    whole = _of_trace(job.trace)
    if job.requests > len(whole):
        raise ScheduleError(f"requests: {job.requests:,}; allowed: up to {len(whole):,}, which the trace has")
    first = number % (len(whole) // job.requests) * job.requests
    found = whole[first : first + job.requests]
    return [replace(one, arrival_s=one.arrival_s - found[0].arrival_s) for one in found]


@lru_cache(maxsize=4)
def _of_trace(path: Path) -> list[Request]:
    try:
        return read(path)
    except ValueError as error:
        raise ScheduleError(f"trace: {error}") from None


def _lasts_s(prefilled: Prefilled, local: Sequence[int]) -> dict[int, float]:
    """Return when the servers at these places have done all prefills of the first site, s, of those that have any."""
    every = zip(prefilled.is_remote, prefilled.server, prefilled.done_s, strict=True)
    return {local[server]: done_s for is_remote, server, done_s in every if not is_remote}  # they are in order


def _caches(
    requests: Sequence[Request],
    prefilled: Prefilled,
    serving: Serving,
    local: Sequence[int],
    remote: Sequence[int],
) -> Iterator[tuple[float, int, Flow, int]]:
    """Yield the caches that are sent, to the local GPUs in turn: when each is done (s), its request, its flow, and its
    bytes."""
    for sent, (number, done_s, size) in enumerate(remote_caches(requests, serving, prefilled)):
        yield done_s, number, Flow(remote[prefilled.server[number]], local[sent % len(local)]), round(size)
