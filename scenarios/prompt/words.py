"""What the prompt says, as text: tables of links and paths, collectives, help. Pure."""

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from scenarios.plan import Mode
from scenarios.prompt.forecast import Outcome, Way, candidates, crosses, edges, way
from topologies.fabric import Fabric
from topologies.scale import RateScale
from topologies.units import format_delay, format_size

Floats = npt.NDArray[np.float64]

_MOST_PATHS = 8


def rate(rate_bps: float) -> str:
    """A rate to be read, of four digits: 43.21 Gbit/s."""
    for unit, size in (("Tbit/s", 1e12), ("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3)):
        if rate_bps >= size:
            return f"{rate_bps / size:.4g} {unit}"
    return f"{rate_bps:.4g} bit/s"


def size(size_bytes: float) -> str:
    """A size to be read, of four digits: 12.34 MB."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size_bytes >= scale:
            return f"{size_bytes / scale:.4g} {unit}"
    return f"{size_bytes:.0f} B"


def delay(delay_s: float) -> str:
    """A delay to be read, of four digits: 30.7 us."""
    return format_delay(float(f"{delay_s:.4g}")) if delay_s >= 1e-9 else "0"


def duration(seconds: float) -> str:
    """A time to be read, in milliseconds, or seconds where it is long."""
    return f"{seconds:.3f} s" if seconds >= 1 else f"{seconds * 1e3:.2f} ms"


def scale_note(scale: RateScale) -> str:
    """What every output with rates says of the scale; nothing where all is carried."""
    return (
        "" if scale.divisor == 1 else f"rate scale {scale}: of these rates and sizes {scale} is carried; times are real"
    )


def banner(fabric: Fabric, scale: RateScale, *, where: str, folder: str) -> str:
    """What a prompt begins with: what is up and where, the scale, and the way on."""
    sites = " + ".join(str(count) for count in fabric.gpus_per_site)
    lines = (
        f"Longhaul: {len(fabric.gpus)} GPUs ({sites}), {len(fabric.switches)} switches, controller and agents are up",
        where,
        scale_note(scale),
        f"captures go to {folder}",
        "help lists the verbs, Tab completes, Ctrl-C aborts, exit or Ctrl-D takes everything down",
    )
    return "\n".join(line for line in lines if line)


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Collection[int]) -> list[str]:
    """Lines of columns; those that hold numbers are at the right."""
    widths = [max(len(row[column]) for row in (headings, *rows)) for column in range(len(headings))]
    return [
        "  ".join(
            cell.rjust(width) if column in numbers else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (headings, *rows)
    ]


def wan(
    fabric: Fabric,
    *,
    rates_bps: Floats,
    delays_s: Floats,
    last_bytes: Mapping[int, int],
    all_bytes: Mapping[int, int],
    scale: RateScale,
) -> str:
    """The WAN links; the bytes are those carried, and are shown as the scenario's."""
    rows = [
        (
            link.name,
            rate(rates_bps[link.index]),
            delay(delays_s[link.index]),
            size(last_bytes.get(link.index, 0) * scale.divisor),
            size(all_bytes.get(link.index, 0) * scale.divisor),
        )
        for link in fabric.links
        if link.kind == "wan"
    ]
    headings = ("link", "available", "delay", "last AllGather", "all AllGathers")
    return _noted(table(headings, rows, numbers=range(1, 5)), scale)


def paths(
    fabric: Fabric,
    ring: Sequence[int],
    used: Sequence[int],
    *,
    rates_bps: Floats,
    delays_s: Floats,
    chunk_bytes: int,
    scale: RateScale,
) -> str:
    """The WAN paths of every crossing of a ring, dearest last, with what a chunk costs over each."""
    lines: list[str] = []
    for (src, dst), in_use in zip(edges(ring), used, strict=True):
        if not crosses(fabric, src, dst):
            continue
        ways = {
            path.index: way(fabric, src, dst, path.index, rates_bps=rates_bps, delays_s=delays_s)
            for path in candidates(fabric, src, dst)
        }
        order = sorted(ways, key=lambda index: ways[index].cost_s(chunk_bytes))
        shown = [index for place, index in enumerate(order) if place < _MOST_PATHS or index == in_use]
        fixed = candidates(fabric, src, dst)[0].index
        rows = [
            _path_row(fabric, index, ways[index], chunk_bytes, in_use=index == in_use, fixed=index == fixed)
            for index in shown
        ]
        heading = (f"g{src} > g{dst}", "slowest link", "delay", f"{format_size(chunk_bytes)} chunk", "")
        lines += table(heading, rows, numbers=range(1, 4))
        if len(order) > len(shown):
            lines.append(f"and {len(order) - len(shown)} dearer ones")
    return _noted(lines, scale)


def _path_row(fabric: Fabric, index: int, over: Way, chunk_bytes: int, *, in_use: bool, fixed: bool) -> tuple[str, ...]:
    marks = [word for word, holds in (("in use", in_use), ("fixed", fixed)) if holds]
    name = fabric.paths[index].name
    return (name, rate(over.rate_bps), delay(over.delay_s), duration(over.cost_s(chunk_bytes)), ", ".join(marks))


def ring(order: Sequence[int], crossings: int, sites: int) -> str:
    """A ring, and what the model does not know of one that crosses the WAN more often than it must."""
    text = " > ".join(f"g{rank}" for rank in (*order, order[0]))
    if crossings > sites:
        text += (
            f"\nit crosses the WAN {crossings} times; the model takes each crossing as if it were alone on its links"
        )
    return text


def mode(mode: Mode, reembed_every: int) -> str:
    """A mode, and what it chooses when."""
    ring = (
        f"the ring re-embedded at the next AllGather and every {reembed_every}th" if mode.reembeds else "the ring fixed"
    )
    return f"{mode.name}: {ring}, WAN paths {'chosen anew for every AllGather' if mode.reroutes else 'fixed'}"


def rated(link: str, rate_bps: int, scale: RateScale) -> str:
    """What a link was given."""
    carried = f", of which {scale}, {rate(scale.rate_bps(rate_bps))}, is carried" if scale.divisor > 1 else ""
    return f"{link} has {rate(rate_bps)}{carried}"


def delayed(link: str, delay_s: float, least_s: float) -> str:
    """What a link was told to take."""
    left_out = f"; in real time less than {delay(least_s)} is left out" if delay_s < least_s else ""
    return f"{link} takes {delay(delay_s)}{left_out}"


def iperf(*, src: int, dst: int, carried_bps: float, slowest: str, rate_bps: float, scale: RateScale) -> str:
    """What TCP carried, beside what the slowest link on the way has."""
    has_bps = scale.rate_bps(round(rate_bps))
    text = f"g{src} > g{dst}: {rate(carried_bps)} of payload carried; {slowest}, the slowest link on the way, has"
    share = f"{100 * carried_bps / has_bps:.1f} %"
    meant = f"rate scale {scale}: that is {rate(carried_bps * scale.divisor)} of {rate(rate_bps)}"
    return f"{text} {rate(has_bps)} ({share})" + (f"\n{meant}" if scale.divisor > 1 else "")


def collective(number: int, outcome: Outcome) -> str:
    """A line of allgather's: what was measured, what was predicted and their ratio."""
    lost = f", {outcome.drops} packets dropped" if outcome.drops else ""
    late = " (this machine was too busy to keep time)" if outcome.late else ""
    return (
        f"AllGather {number}: measured {duration(outcome.measured_s)}, predicted {duration(outcome.predicted_s)}, "
        f"ratio {outcome.measured_s / outcome.predicted_s:.3f}{lost}{late}"
    )


def _noted(lines: Sequence[str], scale: RateScale) -> str:
    note = scale_note(scale)
    return "\n".join([*lines, *([note] if note else [])])
