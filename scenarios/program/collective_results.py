"""What a run tells of the collectives of a script that used the backend `longhaul`: rows, and a summary. Pure.

A collective's time is from the instant at which its last rank began, with its plan in hand, to the end on the last
rank. The prediction is that of the collective alone in the network, if all ranks begin at once and links keep their
rates.
"""

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

COLUMNS = (
    *(
        "ranks",
        "number",
        "kind",
        "size_bytes",
        "algorithm",
        "transfers",
        "placement",
        "paths",
        "reembedded",
        "rerouted",
    ),
    *("openflow_messages", "first_asked_s", "first_begun_s", "begun_s"),
    *("ended_s", "completion_s", "predicted_s"),
)
"""The columns of `collectives.csv`, in the order of ends."""


def rows(ended: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
    """Return a row for each collective, from the records of `guest`."""
    return [
        [
            " ".join(map(str, one["ranks"])),
            *(one[name] for name in ("number", "kind", "size_bytes", "algorithm", "transfers")),
            " ".join(one["placement"]),
            " ".join(f"{src}>{dst}:{path}" for src, dst, path in one["crossings"]),
            *(one[name] for name in ("reembedded", "rerouted", "messages")),
            one["asked_ns"][0] / 1e9,
            *(at_ns / 1e9 for at_ns in one["begun_ns"]),
            one["ended_ns"] / 1e9,
            completion_s(one),
            one["predicted_s"],
        ]
        for one in ended
    ]


def completion_s(one: Mapping[str, Any]) -> float:
    """Return the time of a collective in s."""
    return float(one["ended_ns"] - one["begun_ns"][1]) / 1e9


def summary(ended: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return, for each kind, size and number of ranks, how many collectives there were, their mean time and the mean
    prediction in s (None if there is none), and how often placement and paths were chosen."""
    alike = dict[tuple[str, int, int], list[Mapping[str, Any]]]()
    for one in ended:
        alike.setdefault((one["kind"], one["size_bytes"], len(one["ranks"])), []).append(one)
    return [
        {
            "kind": kind,
            "size_bytes": size_bytes,
            "ranks": ranks,
            "count": len(some),
            "completion_s": fmean(map(completion_s, some)),
            "predicted_s": None
            if any(one["predicted_s"] is None for one in some)
            else fmean(one["predicted_s"] for one in some),
            "reembedded": sum(one["reembedded"] for one in some),
            "rerouted": sum(one["rerouted"] for one in some),
        }
        for (kind, size_bytes, ranks), some in alike.items()
    ]


def table(found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the lines of a table of a summary; none without collectives."""
    if found:
        yield (
            f"{'collective':<16} {'bytes':>14} {'ranks':>5} {'count':>6} {'mean, ms':>12} {'predicted, ms':>13} "
            f"{'rings':>6} {'paths':>6}"
        )
    for one in found:
        predicted = "" if one["predicted_s"] is None else f"{one['predicted_s'] * 1e3:,.6f}"
        yield (
            f"{one['kind']:<16} {one['size_bytes']:>14,} {one['ranks']:>5} {one['count']:>6} "
            f"{one['completion_s'] * 1e3:>12,.6f} {predicted:>13} {one['reembedded']:>6} {one['rerouted']:>6}"
        )
