"""Reads schedules from files of GOAL text, MSCCL's XML or TE-CCL's JSON; the first character determines the format."""

from pathlib import Path

from hosts.collectives import goal, msccl, teccl
from hosts.collectives.kinds import MESSAGES, contents
from hosts.collectives.schedule import Schedule, ScheduleError, prove
from hosts.collectives.untrusted_file import text_of


def read(path: Path, *, kind: str, gpus: int) -> Schedule:
    """Return the schedule in a file, with GPU g at place g; it is proven to do its collective unless it is GOAL.

    Raises ScheduleError, one sentence that begins with the path, if the format's reader does, if the file's collective
    is not `kind`, and if its number of GPUs is not `gpus`.
    """
    content = text_of(path)
    first_character = content.lstrip()[:1]
    if first_character == "<":
        format_name, (file_kind, schedule) = "MSCCL's XML", msccl.read(path, content)
    elif first_character == "{":
        format_name, file_kind, schedule = "TE-CCL's JSON", *teccl.read(path, content)
    else:
        format_name, file_kind, schedule = "GOAL", MESSAGES, goal.read(path, content)
    if file_kind != kind or schedule.places != gpus:
        raise ScheduleError(
            f"{path}: it is {format_name} of {file_kind} between {schedule.places} GPUs, asked for as {kind} between "
            f"{gpus}; allowed: the kind {file_kind} and {schedule.places} GPUs"
        )
    if format_name == "TE-CCL's JSON":
        try:
            prove(schedule, *contents(kind, places=gpus, slots=schedule.slots, scratch=schedule.scratch))
        except ScheduleError as error:
            raise ScheduleError(f"{path}: it does not do its {kind}: {error}") from None
    return schedule
