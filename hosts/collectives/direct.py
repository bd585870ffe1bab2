"""Direct algorithms: every block goes straight from where it begins to where it is wanted."""

from hosts.collectives.schedule import Builder, Schedule


def allgather(places: int) -> Schedule:
    """In round r = 1 .. n-1 every place sends its own block to the r-th place after it."""
    builder = Builder(places=places, slots=places)
    for away in range(1, places):
        for place in range(places):
            builder.send(place, (place + away) % places, [place])
    return builder.done()


def alltoall(places: int) -> Schedule:
    """In round r = 1 .. n-1 every place sends to the r-th place after it what that is to have of it."""
    builder = Builder(places=places, slots=2 * places)
    for away in range(1, places):
        for place in range(places):
            to = (place + away) % places
            builder.send(place, to, [(to, places + place)])
    return builder.done()


def broadcast(places: int) -> Schedule:
    """Place 0 sends to all others."""
    builder = Builder(places=places, slots=1)
    for place in range(1, places):
        builder.send(0, place, [0])
    return builder.done()


def scatter(places: int) -> Schedule:
    """Place 0 sends each other its block."""
    builder = Builder(places=places, slots=places)
    for place in range(1, places):
        builder.send(0, place, [place])
    return builder.done()
