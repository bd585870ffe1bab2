"""The last steps of a script, from what its ranks have kept: Chakra traces with measured times, and a timeline."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from analysis.figures.rank_bars import Bar, RankBars
from analysis.results.writer import atomic_replacement, write_text
from hosts.collectives.chakra_writer import Call, Computation, content
from scenarios.program.rank.longhaul_gpu.breakdown import merged
from scenarios.program.script_steps import Collective, Kept, Window

TRACE, GROUPS = "chakra", "comm_groups.json"
"""In the run folder: the folder of traces, which are `trace.RANK.et`, and in it the ranks of each group by name."""

_Key = tuple[tuple[str, tuple[int, ...]], int, str]
"""A collective: its group, its number in it, and its kind."""


def traces(shown: Window) -> tuple[list[bytes], dict[str, list[int]]]:
    """Return the content of each rank's file, and the ranks of each group by its name in them, but for all ranks.

    Collectives that some ranks of their group began in another step than the window's are left out: what follows them
    waits as long as it did.
    """
    everyone = tuple(range(len(shown.kept)))
    of_rank = [{_key(one): one for kept in steps for one in kept.collectives if one.ended_ns} for steps in shown.kept]
    whole = {
        key
        for found in of_rank
        for key in found
        if all(rank in everyone and key in of_rank[rank] for rank in key[0][1])
    }
    groups = sorted({group for group, _, _ in whole})
    of_all = next((group for group in groups if tuple(sorted(group[1])) == everyone), None)
    names = {group: "" if group == of_all else str(number) for number, group in enumerate(groups, 1)}
    files = [
        content(_nodes(steps, {key: one for key, one in found.items() if key in whole}, names), shown.begin_ns)
        for steps, found in zip(shown.kept, of_rank, strict=True)
    ]
    return files, {name: sorted(group[1]) for group, name in names.items() if name}


def timeline(shown: Window, gpus: Sequence[str]) -> list[RankBars]:
    """Return the bars of each rank for the timeline, given the names of the ranks' GPUs."""
    return [_bars(f"{rank} ({gpu})", steps) for rank, (gpu, steps) in enumerate(zip(gpus, shown.kept, strict=True))]


def _bars(name: str, steps: Sequence[Kept]) -> RankBars:
    kernels = [one for kept in steps for one in kept.kernels]
    collectives = [one for kept in steps for one in kept.collectives if one.ended_ns]
    streams: dict[str, list[Bar]] = {f"stream {number}": [] for number in sorted({one.stream for one in kernels})}
    for one in kernels:
        end_s = (one.begin_ns + one.took_ns) / 1e9
        streams[f"stream {one.stream}"].append(Bar(one.name, one.begin_ns / 1e9, end_s, {"flops": one.flops}))
    groups: dict[str, list[Bar]] = {}
    for call in collectives:
        about = {"number": call.number, "bytes": call.size_bytes, "ranks": list(call.group[1])}
        about["asked_us"] = call.asked_ns / 1e3
        bar = Bar(call.kind, call.begun_ns / 1e9, (call.ended_ns or 0) / 1e9, about)
        groups.setdefault(f"group {call.group[0]}", []).append(bar)
    return RankBars(
        name=name,
        steps=[Bar(str(kept.step), kept.begin_ns / 1e9, kept.end_ns / 1e9, {}) for kept in steps],
        streams=streams,
        groups=groups,
        computing_s=[
            (begin / 1e9, end / 1e9)
            for begin, end in merged((one.begin_ns, one.begin_ns + one.took_ns) for one in kernels)
        ],
    )


def _key(one: Collective) -> _Key:
    return one.group, one.number, one.kind


def _nodes(
    steps: Sequence[Kept], collectives: Mapping[_Key, Collective], names: Mapping[tuple[str, tuple[int, ...]], str]
) -> Iterator[Computation | Call]:
    for kept in steps:
        for one in kept.kernels:
            yield Computation(one.id, one.name, one.begin_ns, one.took_ns, one.flops, one.after)
    for (group, number, kind), call in collectives.items():
        name = f"{kind} {number}"
        size = call.size_bytes, names[group], len(group[1])
        yield Call(call.id, name, kind, *size, call.begun_ns, call.ended_ns or call.begun_ns, call.after)


def write(shown: Window, folder: Path) -> None:
    """Write the traces of all ranks into a folder of a run; raises OSError."""
    files, groups = traces(shown)
    folder = folder / TRACE
    folder.mkdir(exist_ok=True)
    for rank, data in enumerate(files):
        with atomic_replacement(folder / f"trace.{rank}.et") as temporary:
            temporary.write_bytes(data)
    if groups:
        write_text(folder / GROUPS, json.dumps(groups) + "\n")
