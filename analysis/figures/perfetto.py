"""A collective's timeline as a Chrome trace, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

The format is "Trace Event Format" (Duffy, 2016), JSON object form: complete events ("X") in microseconds, one process
a mode, one thread a ring edge. Events of a thread may not overlap unless one encloses the other, so a transfer that
begins while the one before is still under way goes to a further thread of its edge.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from analysis.figures.collective import Collective, Edge, Move, lanes

_PLACES = 6  # of a microsecond: a picosecond, below the resolution of any clock here


def as_json(collectives: Sequence[Collective]) -> str:
    """The trace of a collective in its modes, as the text of a JSON file."""
    first = collectives[0]
    events = [event for pid, one in enumerate(collectives, 1) for event in _process(pid, one)]
    about = {
        "setting": first.configuration.label,
        "collective": first.number,
        "times": {one.mode: "measured" if one.measured else "predicted" for one in collectives},
    }
    document = {"displayTimeUnit": "ns", "otherData": about, "traceEvents": events}
    return json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n"


def _process(pid: int, one: Collective) -> Iterator[dict[str, Any]]:
    how = "measured" if one.measured else "predicted"
    yield _meta(pid, 0, "process_name", "name", f"{one.mode}, collective {one.number}, {how}")
    yield _meta(pid, 0, "process_sort_index", "sort_index", pid)
    tid = 0
    for edge in one.edges:
        moves = one.moves_over(edge)
        places = lanes(moves)
        for lane in range(max(places) + 1):
            tid += 1
            crossing = " over the WAN" if edge.crosses else ""
            further = f" ({lane + 1})" if lane else ""
            yield _meta(
                pid, tid, "thread_name", "name", f"{one.gpu(edge.src)} → {one.gpu(edge.dst)}{crossing}{further}"
            )
            yield _meta(pid, tid, "thread_sort_index", "sort_index", tid)
            yield from (
                _transfer(pid, tid, one, edge, move) for move, at in zip(moves, places, strict=True) if at == lane
            )


def _meta(pid: int, tid: int, name: str, key: str, value: object) -> dict[str, Any]:
    return {"ph": "M", "pid": pid, "tid": tid, "ts": 0, "name": name, "args": {key: value}}


def _transfer(pid: int, tid: int, one: Collective, edge: Edge, move: Move) -> dict[str, Any]:
    start_us, end_us = round(move.leaves_s * 1e6, _PLACES), round(move.end_s * 1e6, _PLACES)
    return {
        "ph": "X",
        "pid": pid,
        "tid": tid,
        "ts": start_us,
        "dur": round(end_us - start_us, _PLACES),
        "name": f"chunk {move.chunk}",
        "cat": "wan" if edge.crosses else "site",
        "args": {
            "step": move.step,
            "handed_over_us": round(move.start_s * 1e6, _PLACES),
            "from": one.gpu(move.src),
            "to": one.gpu(move.dst),
            "via": one.via(edge),
            "rate_bps": int(edge.rate_bps),
            "delay_us": round(edge.delay_s * 1e6, _PLACES),
        },
    }
