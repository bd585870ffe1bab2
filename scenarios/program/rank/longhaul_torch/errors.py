"""Why a group's work fails, and how its errors read."""


class GroupError(Exception):
    """Raised where the work of a group fails; the message says why, as a main clause without a subject of its own."""


class LostRank(GroupError):
    """Raised if a rank closed its connections or cannot be reached: the first to see it may know more."""


class ShutDown(GroupError):
    """Raised where work is under way while this rank ends its group."""

    def __init__(self) -> None:
        super().__init__("the group was shut down")


class TimedOut(GroupError):
    """Raised if work did not end in time."""


def ranks_text(ranks: list[int]) -> str:
    """Return ranks in words, "rank 1 and rank 3"; of many, the first 8."""
    names = [f"rank {rank}" for rank in ranks[:8]]
    if len(ranks) > len(names):
        names.append(f"{len(ranks) - len(names)} more")
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]])) if names else "no rank"
