"""The ring AllGather."""

from hosts.collectives.schedule import Builder, Schedule


def allgather(places: int, *, channels: int = 1, backwards: bool = False) -> Schedule:
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
