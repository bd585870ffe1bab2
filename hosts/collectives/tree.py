"""Chains and trees: place 0 is the root; backwards in time they reduce."""

from collections.abc import Callable, Iterator

from hosts.collectives.schedule import Builder, Schedule


def chain(places: int) -> Schedule:
    """Every place sends the buffer on to the next."""
    return _broadcast(places, [[(place, place + 1) for place in range(places - 1)]])


def binary(places: int) -> Schedule:
    """Place p sends the buffer to places 2p + 1 and 2p + 2."""
    return _broadcast(places, [[((place - 1) // 2, place) for place in range(1, places)]])


def double_binary(places: int) -> Schedule:
    """Half of the buffer over each of two binary trees; a place is a leaf of one of them at least.

    As in Sanders, Speck, Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan" (Parallel
    Computing 2009): the root feeds two trees of the other n-1 places. The first is in order, so that odd numbers are
    its leaves; the second is the first mirrored, or shifted by one where n-1 is odd.
    """
    others = places - 1

    def mirrored(number: int) -> int:
        return others + 1 - number

    def shifted(number: int) -> int:
        return number % others + 1

    def edges(name: Callable[[int], int]) -> list[tuple[int, int]]:
        return [(name(parent) if parent else 0, name(child)) for parent, child in _in_order(1, others, 0)]

    return _broadcast(places, [edges(int), edges(shifted if others % 2 else mirrored)])


def binomial_scatter(places: int) -> Schedule:
    """A place that has the blocks of a range sends the upper half of it to that half's first place."""
    builder = Builder(places=places, slots=places)
    away = 1 << (places - 1).bit_length() >> 1
    while away:
        for place in range(0, places - away, 2 * away):
            builder.send(place, place + away, range(place + away, min(place + 2 * away, places)))
        away //= 2
    return builder.done()


def _in_order(low: int, high: int, parent: int) -> Iterator[tuple[int, int]]:
    """The edges (parent, child) of a binary tree over low .. high in order, whose inner numbers are the even ones."""
    if low > high:
        return
    top = max(range(low, high + 1), key=lambda number: number & -number)
    yield parent, top
    yield from _in_order(low, top - 1, top)
    yield from _in_order(top + 1, high, top)


def _broadcast(places: int, trees: list[list[tuple[int, int]]]) -> Schedule:
    """One slot over each tree, whose edges are in an order in which a place receives before it sends."""
    builder = Builder(places=places, slots=len(trees))
    for turn in range(places - 1):
        for slot, edges in enumerate(trees):
            builder.send(*edges[turn], [slot])
    return builder.done()
