"""Algorithms in which what a place has doubles in every round; backwards in time it halves."""

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
