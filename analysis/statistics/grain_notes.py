"""Which fastest algorithms have several messages at a time at a GPU within its site: the logical grain gives each a
link of its own, the physical grain lets them share the GPU's port."""

from collections.abc import Callable, Iterable, Sequence

from analysis.statistics.contests import Place
from topologies.errors import list_first

_MOST = 4  # alternatives that are named


def most_at_a_time(
    ends: Sequence[tuple[int, int]], transfers: Iterable[tuple[int, Sequence[int]]], gpus_per_site: Sequence[int]
) -> int:
    """Return the most messages that a GPU sends, or receives, at a time to or from GPUs of its site.

    `ends` are the two places of each flow, with those of a site after each other, and `transfers` the flow of each
    message and the earlier ones that must have arrived before it begins. Messages are taken to be sent at the same time
    if their longest chains of earlier messages have the same length; those of one flow follow each other.
    """
    site = [number for number, count in enumerate(gpus_per_site) for _ in range(count)]
    steps, flows = list[int](), dict[tuple[int, int, bool], set[int]]()
    for flow, after in transfers:
        src, dst = ends[flow]
        steps.append((src != dst) + max((steps[index] for index in after), default=0))
        if src != dst and site[src] == site[dst]:
            for place, is_sent in ((src, True), (dst, False)):
                flows.setdefault((steps[-1], place, is_sent), set()).add(flow)
    return max(map(len, flows.values()), default=0)


def grain_sentence(
    won: Iterable[tuple[str, Place, Sequence[Place]]],
    algorithm: Callable[[int], str],
    at_a_time: Callable[[int], int],
) -> str:
    """Return a sentence on the fastest alternatives that the physical grain may slow down; "" for none.

    `won` has the name and a point of the fastest of each contest, and all its points. `algorithm` and `at_a_time` are
    the algorithm of a configuration by its index, and the most messages at a time at a GPU within its site: 0 in the
    physical grain. A contest counts if it is one of algorithms.
    """
    found = dict[str, int]()
    for name, best, places in won:
        if len({algorithm(place.setting) for place in places}) > 1 and (count := at_a_time(best.setting)) > 1:
            found[name] = max(count, found.get(name, 0))
    if not found:
        return ""
    several = f"up to {max(found.values())} messages at a time at a GPU within its site"
    return (
        f"In {list_first([*found], _MOST)} there are {several}, each on a link of its own, as this is the logical "
        "grain: with fabric.grain=physical they share the GPU's port, and another algorithm may be fastest."
    )
