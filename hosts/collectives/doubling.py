"""Recursive doubling; backwards in time it is recursive halving."""

from hosts.collectives.schedule import Builder, Schedule


def allgather(places: int) -> Schedule:
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
