"""Reads schedules from files of GOAL text, MSCCL's XML or TE-CCL's JSON; the first character tells the format."""

from pathlib import Path

from hosts.collectives import goal, msccl, teccl
from hosts.collectives.kinds import MESSAGES, contents
from hosts.collectives.schedule import Schedule, ScheduleError, prove
from hosts.collectives.text_file import text_of


def read(path: Path, *, kind: str, gpus: int) -> Schedule:
    """Return the schedule in a file, with GPU g at place g; it is proven to do its collective unless it is GOAL.

    Raises ScheduleError, one sentence that begins with the path, if the format's reader does, if the file's collective
    is not `kind`, and if its number of GPUs is not `gpus`.
    """
    content = text_of(path)
    begins = content.lstrip()[:1]
    if begins == "<":
        form, (of, found) = "MSCCL's XML", msccl.read(path, content)
    elif begins == "{":
        form, of, found = "TE-CCL's JSON", "allgather", teccl.read(path, content)
    else:
        form, of, found = "GOAL", MESSAGES, goal.read(path, content)
    if of != kind or found.places != gpus:
        raise ScheduleError(
            f"{path}: it is {form} of {of} between {found.places} GPUs, asked for as {kind} between {gpus}; "
            f"allowed: the kind {of} and {found.places} GPUs"
        )
    if form == "TE-CCL's JSON":
        try:
            prove(found, *contents(kind, places=found.places, slots=found.slots))
        except ScheduleError as error:
            raise ScheduleError(f"{path}: it does not do its {kind}: {error}") from None
    return found
