"""Algorithms that know the sites: what is common to a site crosses the WAN once."""

from itertools import accumulate

from hosts.collectives.schedule import Builder, Schedule


def allgather(sites: tuple[int, ...], *, direct: bool = False) -> Schedule:
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


def broadcast(sites: tuple[int, ...]) -> Schedule:
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
