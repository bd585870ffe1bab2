"""Algorithms of collectives: functions that return schedules over places 0 .. n-1, where place 0 is the root.

For the collectives that reduce, `kinds` reverses these schedules in time.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

from hosts.collectives.schedule import Builder, Schedule


def ring_allgather(places: int, *, channels: int = 1, backwards: bool = False) -> Schedule:
    """Return the ring AllGather over places 0 .. n-1; block b has one slot per channel.

    The first channel runs from place 0 to place 1, or in the opposite direction if `backwards`; directions alternate
    from channel to channel. In step 1 a place sends its own block, and in steps 2 .. n-1 the block that it received in
    the step before.
    """
    builder = Builder(places=places, slots=places * channels)
    for step in range(1, places):
        for channel in range(channels):
            direction = 1 if (channel % 2 == 0) != backwards else -1
            for place in range(places):
                block = (place - direction * (step - 1)) % places
                builder.send(place, (place + direction) % places, [block * channels + channel], channel=channel)
    return builder.done()


# --- direct: every block goes straight from its source to its destinations --------------------------------------------


def direct_allgather(places: int) -> Schedule:
    """In round r = 1 .. n-1 every place sends its own block to the r-th place after it."""
    builder = Builder(places=places, slots=places)
    for away in range(1, places):
        for place in range(places):
            builder.send(place, (place + away) % places, [place])
    return builder.done()


def direct_alltoall(places: int) -> Schedule:
    """In round r = 1 .. n-1 every place sends the r-th place after it the block meant for that place."""
    builder = Builder(places=places, slots=2 * places)
    for away in range(1, places):
        for place in range(places):
            to = (place + away) % places
            builder.send(place, to, [(to, places + place)])
    return builder.done()


def shifted_blocks(places: int, distances: Sequence[int]) -> Schedule:
    """Every place sends each slot of its first half to the place as far after it as the slot's distance, into the same
    slot of the second half; the slots of a distance are one message."""
    builder, slots = Builder(places=places, slots=2 * len(distances)), len(distances)
    for away in dict.fromkeys(distances):
        for place in range(places):
            of = [slot for slot, distance in enumerate(distances) if distance == away]
            builder.send(place, (place + away) % places, [(slot, slots + slot) for slot in of])
    return builder.done()


def direct_broadcast(places: int) -> Schedule:
    """Place 0 sends the buffer to every other place."""
    builder = Builder(places=places, slots=1)
    for place in range(1, places):
        builder.send(0, place, [0])
    return builder.done()


def direct_scatter(places: int) -> Schedule:
    """Place 0 sends every other place its block."""
    builder = Builder(places=places, slots=places)
    for place in range(1, places):
        builder.send(0, place, [place])
    return builder.done()


# --- doubling: the number of blocks of a place doubles in every round (reversed in time it halves) --------------------


def recursive_doubling(places: int) -> Schedule:
    """In round r two places 2^r apart exchange all their blocks: log2(n) rounds.

    If n is not a power of two, let c be the largest power of two below n. Each place from c on sends its block to a
    partner first, and receives all other blocks from it at the end (Thakur, Rabenseifner, Gropp, "Optimization of
    Collective Communication Operations in MPICH", IJHPCA 2005, section 4).
    """
    cube = 1 << (places.bit_length() - 1)
    builder = Builder(places=places, slots=places)
    blocks = [[place] for place in range(cube)]
    for extra in range(cube, places):
        builder.send(extra, extra - cube, [extra])
        blocks[extra - cube].append(extra)
    away = 1
    while away < cube:
        for place in range(cube):
            builder.send(place, place ^ away, blocks[place])
        blocks = [blocks[place] + blocks[place ^ away] for place in range(cube)]
        away *= 2
    for extra in range(cube, places):
        builder.send(extra - cube, extra, [block for block in range(places) if block != extra])
    return builder.done()


def bruck(places: int) -> Schedule:
    """In round r every place sends its blocks, its own first, to the place 2^r before it.

    This takes ceil(log2(n)) rounds for any n, without folding. Before round r a place has its own block and the
    2^r - 1 after it; in the last round it sends only the blocks that the receiver lacks (Bruck et al., "Efficient
    Algorithms for All-to-All Communications in Multiport Message-Passing Systems", TPDS 1997, section 3).
    """
    builder = Builder(places=places, slots=places)
    away = 1
    while away < places:
        for place in range(places):
            blocks = [(place + block) % places for block in range(min(away, places - away))]
            builder.send(place, (place - away) % places, blocks)
        away *= 2
    return builder.done()


# --- hierarchical: a block crosses the WAN once per site, and is then spread within the site --------------------------


def hierarchical_allgather(sites: tuple[int, ...], *, direct: bool = False) -> Schedule:
    """Every place sends its block to one peer in each other site; rings within the sites spread the blocks.

    With `direct` every place sends its blocks to every other place of its site itself. A site spreads its own blocks
    first, while those of other sites are in flight. Reversed in time the schedule reduces within a site before it
    crosses the WAN. Sites may differ in size: the peer of a site's i-th place is the place with index i modulo the
    other site's size.
    """
    members = _members(sites)
    builder = Builder(places=sum(sites), slots=sum(sites))
    held: dict[int, list[int]] = {place: [] for place in range(sum(sites))}
    for site in members:
        for peer_site in members:
            if peer_site is not site:
                for index, place in enumerate(site):
                    peer = peer_site[index % len(peer_site)]
                    builder.send(place, peer, [place])
                    held[peer].append(place)
    for site in members:
        for blocks in ({place: [place] for place in site}, held):
            for step in range(1, len(site)):
                for index, place in enumerate(site):
                    owner, away = (place, step) if direct else (site[index - step + 1], 1)
                    if blocks[owner]:
                        builder.send(place, site[(index + away) % len(site)], blocks[owner])
    return builder.done()


def hierarchical_broadcast(sites: tuple[int, ...]) -> Schedule:
    """The root sends the buffer to the first place of each other site; a chain within each site spreads it."""
    builder = Builder(places=sum(sites), slots=1)
    members = _members(sites)
    for other in members[1:]:
        builder.send(0, other[0], [0])
    for own in members:
        for place in own[:-1]:
            builder.send(place, place + 1, [0])
    return builder.done()


def _members(sites: tuple[int, ...]) -> list[range]:
    """Return the places of each site."""
    ends = list(accumulate(sites))
    return [range(end - size, end) for end, size in zip(ends, sites, strict=True)]


# --- chains and trees -------------------------------------------------------------------------------------------------


def chain(places: int) -> Schedule:
    """Every place forwards the buffer to the next place."""
    return _over_trees(places, [[(place, place + 1) for place in range(places - 1)]])


def binary_tree(places: int) -> Schedule:
    """Place p sends the buffer to places 2p + 1 and 2p + 2."""
    return _over_trees(places, [[((place - 1) // 2, place) for place in range(1, places)]])


def double_binary_tree(places: int) -> Schedule:
    """Each half of the buffer takes one of two binary trees; every place but the root is a leaf of at least one tree.

    As in Sanders, Speck, Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan" (Parallel
    Computing 2009): the root feeds two trees of the other n-1 places. The first is an in-order tree, whose leaves are
    the odd places; the second is the first one mirrored, or shifted by one place if n-1 is odd.
    """
    others = places - 1

    def mirrored(number: int) -> int:
        return others + 1 - number

    def shifted(number: int) -> int:
        return number % others + 1

    def edges(place_of: Callable[[int], int]) -> list[tuple[int, int]]:
        return [(place_of(parent) if parent else 0, place_of(child)) for parent, child in _in_order(1, others, 0)]

    return _over_trees(places, [edges(lambda number: number), edges(shifted if others % 2 else mirrored)])


def binomial_scatter(places: int) -> Schedule:
    """A place with the blocks of a range of places sends the upper half to that half's first place (binomial tree)."""
    builder = Builder(places=places, slots=places)
    away = 1 << (places - 1).bit_length() >> 1
    while away:
        for place in range(0, places - away, 2 * away):
            builder.send(place, place + away, range(place + away, min(place + 2 * away, places)))
        away //= 2
    return builder.done()


def _in_order(low: int, high: int, parent: int) -> Iterator[tuple[int, int]]:
    """Yield the edges (parent, child) of an in-order binary tree over low .. high; its inner nodes are even numbers."""
    if low > high:
        return
    top = max(range(low, high + 1), key=lambda number: number & -number)
    yield parent, top
    yield from _in_order(low, top - 1, top)
    yield from _in_order(top + 1, high, top)


def _over_trees(places: int, trees: list[list[tuple[int, int]]]) -> Schedule:
    """Return the broadcast of one slot over each tree; edges are ordered so that a place receives before it sends."""
    builder = Builder(places=places, slots=len(trees))
    for turn in range(places - 1):
        for slot, edges in enumerate(trees):
            builder.send(*edges[turn], [slot])
    return builder.done()
