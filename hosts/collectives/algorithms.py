"""Algorithms of collectives as schedules over places 0 .. n-1, of which place 0 is the root.

`kinds` runs them backwards in time for the collectives that reduce.
"""

from collections.abc import Callable, Iterator
from itertools import accumulate

from hosts.collectives.schedule import Builder, Schedule


def ring_allgather(places: int, *, channels: int = 1, backwards: bool = False) -> Schedule:
    """The ring AllGather over places 0 .. n-1 as a schedule; block b has a slot on each channel.

    The first channel goes from place 0 to place 1, or the other way round if `backwards`; every other channel goes in
    the opposite direction. In step s = 1 .. n-1 a place sends on the block that it received in the step before, first
    its own.
    """
    builder = Builder(places=places, slots=places * channels)
    for step in range(1, places):
        for channel in range(channels):
            way = 1 if (channel % 2 == 0) != backwards else -1
            for place in range(places):
                block = (place - way * (step - 1)) % places
                builder.send(place, (place + way) % places, [block * channels + channel], channel=channel)
    return builder.done()


# --- every block straight from where it begins to where it is wanted --------------------------------------------------


def direct_allgather(places: int) -> Schedule:
    """In round r = 1 .. n-1 every place sends its own block to the r-th place after it."""
    builder = Builder(places=places, slots=places)
    for away in range(1, places):
        for place in range(places):
            builder.send(place, (place + away) % places, [place])
    return builder.done()


def direct_alltoall(places: int) -> Schedule:
    """In round r = 1 .. n-1 every place sends to the r-th place after it what that is to have of it."""
    builder = Builder(places=places, slots=2 * places)
    for away in range(1, places):
        for place in range(places):
            to = (place + away) % places
            builder.send(place, to, [(to, places + place)])
    return builder.done()


def direct_broadcast(places: int) -> Schedule:
    """Place 0 sends to all others."""
    builder = Builder(places=places, slots=1)
    for place in range(1, places):
        builder.send(0, place, [0])
    return builder.done()


def direct_scatter(places: int) -> Schedule:
    """Place 0 sends each other its block."""
    builder = Builder(places=places, slots=places)
    for place in range(1, places):
        builder.send(0, place, [place])
    return builder.done()


# --- what a place has doubles in every round; backwards in time it halves ---------------------------------------------


def recursive_doubling(places: int) -> Schedule:
    """In round r two places 2^r apart exchange all that they have: log2(n) rounds.

    Of n that is not a power of two, the places beyond the largest one below n each give their block to a partner
    first, and get all others from it at the end (Thakur, Rabenseifner, Gropp, "Optimization of Collective
    Communication Operations in MPICH", IJHPCA 2005, section 4).
    """
    cube = 1 << (places.bit_length() - 1)
    builder = Builder(places=places, slots=places)
    has = [[place] for place in range(cube)]
    for extra in range(cube, places):
        builder.send(extra, extra - cube, [extra])
        has[extra - cube].append(extra)
    away = 1
    while away < cube:
        for place in range(cube):
            builder.send(place, place ^ away, has[place])
        has = [has[place] + has[place ^ away] for place in range(cube)]
        away *= 2
    for extra in range(cube, places):
        builder.send(extra - cube, extra, [block for block in range(places) if block != extra])
    return builder.done()


def bruck(places: int) -> Schedule:
    """In round r every place sends the blocks that it has, its own first, to the place 2^r before it.

    That are as many rounds as doubling takes, for any number of places without folding: before round r a place has its
    own block and the 2^r - 1 after it, and in the last round it sends only those that are still wanted (Bruck et al.,
    "Efficient Algorithms for All-to-All Communications in Multiport Message-Passing Systems", TPDS 1997, section 3).
    """
    builder = Builder(places=places, slots=places)
    away = 1
    while away < places:
        for place in range(places):
            has = [(place + block) % places for block in range(min(away, places - away))]
            builder.send(place, (place - away) % places, has)
        away *= 2
    return builder.done()


# --- those that know the sites: what is common to a site crosses the WAN once -----------------------------------------


def hierarchical_allgather(sites: tuple[int, ...], *, direct: bool = False) -> Schedule:
    """Every place sends its block to one peer in each other site; rings within the sites spread them.

    With `direct` every place sends what it has to each other of its site itself. A site's own blocks come first, while
    those of other sites are on their way. Backwards in time it reduces within a site before it crosses. Blocks are as
    many as places, so sites may differ in size: the i-th place of a site has the peer i modulo the other site's size.
    """
    members = _members(sites)
    builder = Builder(places=sum(sites), slots=sum(sites))
    held: dict[int, list[int]] = {place: [] for place in range(sum(sites))}
    for own in members:
        for other in members:
            if other is not own:
                for index, place in enumerate(own):
                    peer = other[index % len(other)]
                    builder.send(place, peer, [place])
                    held[peer].append(place)
    for own in members:
        for blocks in ({place: [place] for place in own}, held):
            for step in range(1, len(own)):
                for index, place in enumerate(own):
                    carried = blocks[place if direct else own[index - step + 1]]
                    if carried:
                        builder.send(place, own[(index + (step if direct else 1)) % len(own)], carried)
    return builder.done()


def hierarchical_broadcast(sites: tuple[int, ...]) -> Schedule:
    """The root sends the buffer to the first place of each other site; a chain spreads it within each."""
    builder = Builder(places=sum(sites), slots=1)
    members = _members(sites)
    for other in members[1:]:
        builder.send(0, other[0], [0])
    for own in members:
        for place in own[:-1]:
            builder.send(place, place + 1, [0])
    return builder.done()


def _members(sites: tuple[int, ...]) -> list[range]:
    """The places of each site."""
    ends = list(accumulate(sites))
    return [range(end - size, end) for end, size in zip(ends, sites, strict=True)]


# --- chains and trees -------------------------------------------------------------------------------------------------


def chain(places: int) -> Schedule:
    """Every place sends the buffer on to the next."""
    return _over_trees(places, [[(place, place + 1) for place in range(places - 1)]])


def binary_tree(places: int) -> Schedule:
    """Place p sends the buffer to places 2p + 1 and 2p + 2."""
    return _over_trees(places, [[((place - 1) // 2, place) for place in range(1, places)]])


def double_binary_tree(places: int) -> Schedule:
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

    return _over_trees(places, [edges(int), edges(shifted if others % 2 else mirrored)])


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


def _over_trees(places: int, trees: list[list[tuple[int, int]]]) -> Schedule:
    """One slot over each tree, whose edges are in an order in which a place receives before it sends."""
    builder = Builder(places=places, slots=len(trees))
    for turn in range(places - 1):
        for slot, edges in enumerate(trees):
            builder.send(*edges[turn], [slot])
    return builder.done()
