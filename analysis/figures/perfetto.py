"""Timelines of a collective, or of a script's ranks, as Chrome traces, for Perfetto (ui.perfetto.dev) and
chrome://tracing.

The format is "Trace Event Format" (Duffy, 2016), JSON object form: complete events ("X") in microseconds, with a
process for each mode and a thread for each flow of the schedule, or a process for each rank and a thread for each of
its streams and groups. Events of a thread may only overlap if one encloses the other, so a transfer that starts before
the previous one has ended goes to a further thread of its flow.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from analysis.figures.collective_detail import Collective, TimedTransfer, lanes
from analysis.figures.rank_bars import Bar, RankBars
from analysis.figures.training import computations

_DECIMALS = 6  # of a time in microseconds: a picosecond, below the resolution of any clock here


def as_json(collectives: Sequence[Collective]) -> str:
    """Return the trace of a collective in each mode as the text of a JSON file."""
    first = collectives[0]
    events = [event for pid, one in enumerate(collectives, 1) for event in _process(pid, one)]
    about = {
        "setting": first.configuration.label,
        "collective": first.number,
        "times": {one.mode: "measured" if one.measured else "predicted" for one in collectives},
        "critical_path_s": {
            one.mode: {name: cost._asdict() for name, cost in one.costs.items()} for one in collectives
        },
    }
    return _document(about, events)


def ranks_as_json(title: str, ranks: Sequence[RankBars]) -> str:
    """Return the trace of a script's ranks as the text of a JSON file."""
    return _document({"run": title}, [event for pid, rank in enumerate(ranks, 1) for event in _rank(pid, rank)])


def _document(about: dict[str, Any], events: list[dict[str, Any]]) -> str:
    document = {"displayTimeUnit": "ns", "otherData": about, "traceEvents": events}
    return json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n"


def _rank(pid: int, rank: RankBars) -> Iterator[dict[str, Any]]:
    yield _meta(pid, 0, "process_name", "name", rank.name)
    yield _meta(pid, 0, "process_sort_index", "sort_index", pid)
    threads = [("steps", "step", rank.steps)]
    threads += [(name, "kernel", bars) for name, bars in rank.streams.items()]
    threads += [(name, "collective", bars) for name, bars in rank.groups.items()]
    for tid, (name, category, bars) in enumerate(threads, 1):
        yield _meta(pid, tid, "thread_name", "name", name)
        yield _meta(pid, tid, "thread_sort_index", "sort_index", tid)
        yield from (_bar(pid, tid, category, bar) for bar in bars)


def _bar(pid: int, tid: int, category: str, bar: Bar) -> dict[str, Any]:
    begin_us, end_us = round(bar.begin_s * 1e6, _DECIMALS), round(bar.end_s * 1e6, _DECIMALS)
    about = {"pid": pid, "tid": tid, "ts": begin_us, "dur": round(end_us - begin_us, _DECIMALS)}
    return {"ph": "X", **about, "name": bar.name, "cat": category, "args": dict(bar.about)}


def _process(pid: int, one: Collective) -> Iterator[dict[str, Any]]:
    how = "measured" if one.measured else "predicted"
    yield _meta(pid, 0, "process_name", "name", f"{one.mode}, collective {one.number}, {how}")
    yield _meta(pid, 0, "process_sort_index", "sort_index", pid)
    tid, computed, otherwise = 0, computations(one), "computation" if one.computes else "wait"
    for index in one.busy:
        flow, transfers = one.flows[index], one.transfers_over(index)
        lane_of = lanes(transfers)
        for lane in range(max(lane_of, default=0) + 1):
            tid += 1
            crossing = " over the WAN" if flow.crosses else ""
            further = f" ({lane + 1})" if lane else ""
            yield _meta(pid, tid, "thread_name", "name", f"{one.name(flow)}{crossing}{further}")
            yield _meta(pid, tid, "thread_sort_index", "sort_index", tid)
            yield from (
                _transfer(pid, tid, one, timed, computed.get(timed.transfer, otherwise))
                for timed, own in zip(transfers, lane_of, strict=True)
                if own == lane
            )


def _meta(pid: int, tid: int, name: str, key: str, value: object) -> dict[str, Any]:
    return {"ph": "M", "pid": pid, "tid": tid, "ts": 0, "name": name, "args": {key: value}}


def _transfer(pid: int, tid: int, one: Collective, timed: TimedTransfer, computed: str) -> dict[str, Any]:
    flow = one.flows[timed.flow]
    start_us, end_us = round(timed.leaves_s * 1e6, _DECIMALS), round(timed.end_s * 1e6, _DECIMALS)
    category = "wan" if flow.crosses else "site"
    if not flow.links:
        name, category = computed, "computation" if one.computes else "wait"
    elif timed.block >= 0:
        name = f"{'chunk' if one.configuration.is_ring_allgather else 'block'} {timed.block}"
    else:
        name = "message"
    about: dict[str, Any] = {
        "step": timed.step,
        "handed_over_us": round(timed.start_s * 1e6, _DECIMALS),
        "from": one.gpu(flow.src),
        "to": one.gpu(flow.dst),
        "via": one.via(flow),
    }
    if flow.links:
        about |= {"rate_bps": int(flow.rate_bps), "delay_us": round(flow.delay_s * 1e6, _DECIMALS)}
    if not one.configuration.is_ring_allgather:
        about |= {"transfer": timed.transfer} | ({"bytes": round(timed.size)} if flow.links else {})
    return {
        "ph": "X",
        "pid": pid,
        "tid": tid,
        "ts": start_us,
        "dur": round(end_us - start_us, _DECIMALS),
        "name": name,
        "cat": category,
        "args": about | {"critical": timed.is_critical},
    }
