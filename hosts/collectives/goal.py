"""Schedules as GOAL text, which LogGOPSim's `txt2bin` and ATLAHS read.

Hoefler, Siebert, Lumsdaine, "Group Operation Assembly Language" (ICPP 2009); the grammar is LogGOPSim's
`src/LogGOPSim/txt2bin.re`. GOAL knows messages and not what is in them: which slots a message carries, and whether
they are added, is lost.
"""

from collections.abc import Sequence

from hosts.collectives.schedule import Schedule


def text(schedule: Schedule, *, placement: Sequence[int], slot_bytes: float) -> str:
    """The schedule as GOAL, with the rank `placement[p]` at place p and slots of so many bytes.

    A message is a send of one rank and a receive of another under one tag, its number in the schedule. A send requires
    the receives that it waits for and the send before it on its flow; a channel is a NIC. Sizes are whole bytes, the
    least of 1. Raises ValueError where `placement` is not all ranks once.
    """
    if sorted(placement) != list(range(schedule.places)):
        raise ValueError(f"the placement {list(placement)} is not the ranks 0 to {schedule.places - 1}, each once")
    lines: list[list[str]] = [[] for _ in placement]
    requires: list[list[str]] = [[] for _ in placement]
    last: dict[int, int] = {}
    for tag, (flow, transfer) in enumerate(schedule.sends(), start=1):
        src, dst = placement[flow.src], placement[flow.dst]
        size = max(1, round(len(transfer.slots) * slot_bytes))
        lines[src].append(f"s{tag}: send {size}b to {dst} tag {tag} nic {flow.channel}")
        lines[dst].append(f"r{tag}: recv {size}b from {src} tag {tag} nic {flow.channel}")
        requires[src] += [f"s{tag} requires r{one + 1}" for one in transfer.after]
        if transfer.flow in last:
            requires[src].append(f"s{tag} requires s{last[transfer.flow]}")
        last[transfer.flow] = tag
    blocks = (
        "\n".join([f"rank {rank} {{", *operations, *edges, "}"])
        for rank, (operations, edges) in enumerate(zip(lines, requires, strict=True))
    )
    return f"num_ranks {schedule.places}\n\n" + "\n\n".join(blocks) + "\n"
