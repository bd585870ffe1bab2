"""Reads schedules from files of GOAL text, MSCCL's XML or TE-CCL's JSON; the first character determines the format."""

from dataclasses import replace
from pathlib import Path

from hosts.collectives import goal, msccl, teccl
from hosts.collectives.kinds import MESSAGES, contents
from hosts.collectives.schedule import Schedule, ScheduleError, prove
from hosts.collectives.untrusted_file import bytes_of, text_in, xml_text_in

_MARKS = b"\xef\xbb\xbf\xff\xfe\x00"  # the bytes of byte-order marks, and those between ASCII letters in UTF-16


def read(path: Path, *, kind: str, gpus: int, chunk_bytes: int = 1) -> Schedule:
    """Return the schedule in a file, with GPU g at place g.

    A file of a collective is proven to do it. With the kind "messages" the result is a schedule of messages without
    contents, in bytes: GOAL's, or those of any program of MSCCL, with chunks of `chunk_bytes`. `notes` of the schedule
    say what was left out or changed.

    Raises ScheduleError, one sentence that begins with the path, if the format's reader does, if the file's collective
    is not `kind`, and if its number of GPUs is not `gpus`.
    """
    content = bytes_of(path)
    first = _first_character(content)
    if first == b"<":
        format_name, text = "MSCCL's XML", xml_text_in(path, content)
        file_kind, schedule = msccl.read(path, text, as_messages=kind == MESSAGES, chunk_bytes=chunk_bytes)
    elif first == b"{":
        format_name, (file_kind, schedule) = "TE-CCL's JSON", teccl.read(path, text_in(path, content))
    elif goal.is_binary(content):
        raise ScheduleError(
            f"{path}: it is binary GOAL, which txt2bin writes and which is not read; allowed: the text from which it "
            "was made"
        )
    else:
        format_name, file_kind, schedule = "GOAL", MESSAGES, goal.read(path, text_in(path, content))
    if file_kind != kind or schedule.places != gpus:
        kinds = f"{file_kind} or {MESSAGES}" if first == b"<" and file_kind != MESSAGES else file_kind
        places = schedule.places
        some = ", ".join(map(str, range(min(places, 4)))) + ", ..." * (places > 4)
        fewer = f", or a [[job]] with {places:,} ranks, such as ranks = [{some}]" if places < gpus else ""
        raise ScheduleError(
            f"{path}: it is {format_name} of {file_kind} between {schedule.places:,} GPUs, asked for as {kind} between "
            f"{gpus:,}; allowed: the kind {kinds} and {schedule.places:,} GPUs{fewer}"
        )
    if format_name == "TE-CCL's JSON":
        try:
            prove(schedule, *contents(kind, places=gpus, slots=schedule.slots, scratch=schedule.scratch))
        except ScheduleError as error:
            raise ScheduleError(f"{path}: it does not do its {kind}: {error}") from None
    return replace(schedule, notes=tuple(f"{path.name}: {note}" for note in schedule.notes))


def is_msccl(path: Path) -> bool:
    """Whether a file is XML, as MSCCL's; False for a file that cannot be read."""
    try:
        return _first_character(bytes_of(path)) == b"<"
    except ScheduleError:
        return False


def _first_character(content: bytes) -> bytes:
    return content[:64].lstrip(_MARKS + b" \t\r\n")[:1]
