"""What GPUs and the communicator say to each other, as bytes.

On a control connection goes one JSON object a line, no longer than MAX_LINE_BYTES. Every command is checked against
COMMANDS when it is read, and the specification that a nursery is given against its own table, so what an agent works
with has the right names and types. On a ring connection goes a greeting with the run's token, and then chunk after
chunk, each with a label behind it.
"""

import json
import struct
from collections.abc import Mapping
from typing import Any

MAX_LINE_BYTES = 1 << 16
MAX_SPEC_BYTES = 1 << 20
TOKEN_BYTES = 32
_SHOWN = 60  # characters of what is wrong that a message repeats

COMMANDS: Mapping[str, Mapping[str, Any]] = {
    # Join the ring: connect to the successor, accept the predecessor, see that the window is open, leave.
    "connect": {"epoch": int, "successor": int, "address": str},
    "accept": {"epoch": int, "predecessor": int},
    "confirm": {},
    "touch": {},
    "abort": {},
    # Tell how many bytes TCP has sent again to the successor since the ring was made.
    "again": {},
    # Take part in a collective: the chunks that will arrive, by the rank they begin at; `flip` is a byte to damage.
    "allgather": {"collective": int, "start_ns": int, "arrivals": list, "flip": list},
}

ANSWERS: Mapping[str, Mapping[str, Any]] = {
    "start": {"pid": int},
    "connect": {},
    "accept": {},
    "confirm": {"congestion_window_bytes": int, "announced_window_bytes": int},
    "touch": {},
    "abort": {},
    "again": {"bytes": int},
    "allgather": {"start_ns": int, "arrived_ns": list, "faults": tuple},
}
_FAULT = {"step": int, "chunk": int, "text": str}

_LABEL = struct.Struct("!4sHxxQQ")
_MAGIC = b"LHch"
LABEL_BYTES = _LABEL.size

_GREETING = struct.Struct(f"!4sHxxQ{TOKEN_BYTES}s")
_HELLO = b"LHhi"
GREETING_BYTES = _GREETING.size

_SPEC: Mapping[str, Mapping[str, Any]] = {
    "a GPU": {"rank": int, "address": str, "interface": str, "host_pid": int, "control_fd": int},
    "the transport": {"line_rate": bool, "congestion_control": str, "slow_start_after_idle": bool, "mtu_bytes": int},
    "the limits": {
        "window_bytes": int,
        "initial_segments": int,
        "receive_buffer_bytes": int,
        "send_buffer_bytes": int,
    },
}
_SPEC_KEYS = {"gpus": object, "transport": dict, "limits": dict, "chunk_bytes": int, "deadline_s": float, "token": str}


class WireError(ValueError):
    """A message that is not what it should be; the text says how."""


def line(message: Mapping[str, object]) -> bytes:
    """The message as a line; raises WireError where it would be longer than a reader takes."""
    data = json.dumps(message, separators=(",", ":")).encode() + b"\n"
    if len(data) > MAX_LINE_BYTES:
        raise WireError(f"a control message of {len(data)} bytes, and {MAX_LINE_BYTES} is the most")
    return data


class Lines:
    """The lines of a stream that comes in pieces. Of one that is too long only the beginning is kept, for a reader to
    complain of; it has no end, and so it is no message."""

    def __init__(self) -> None:
        self._pending = bytearray()
        self._skipping = False

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that are complete now, or too long; no more than one line is ever kept."""
        found: list[bytes] = []
        *whole, rest = data.split(b"\n")
        for part in whole:
            self._keep(part, found)
            if not self._skipping:
                found.append(bytes(self._pending) + b"\n")
            self._pending.clear()
            self._skipping = False
        self._keep(rest, found)
        return found

    def _keep(self, part: bytes, found: list[bytes]) -> None:
        if self._skipping:
            return
        self._pending += part[: MAX_LINE_BYTES + 1]
        if len(self._pending) >= MAX_LINE_BYTES:
            found.append(bytes(self._pending[: MAX_LINE_BYTES + 1]))
            self._pending.clear()
            self._skipping = True


def message(data: bytes, *, most_bytes: int = MAX_LINE_BYTES) -> dict[str, Any]:
    """The object that a line holds; raises WireError for anything else."""
    if len(data) > most_bytes or not data.endswith(b"\n"):
        raise WireError(f"a control message of {len(data)} bytes that does not end within {most_bytes}")
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise WireError(f"{data[:60]!r} is no JSON object")
    return found


def command(data: bytes) -> dict[str, Any]:
    """The command that a line holds, with its name under "do"; raises WireError unless it is as COMMANDS says."""
    found = message(data)
    name = found.get("do")
    if not isinstance(name, str) or name not in COMMANDS:
        raise WireError(f"{_shown(str(name))} is no command of an agent's; they are {', '.join(COMMANDS)}")
    _check({key: value for key, value in found.items() if key != "do"}, COMMANDS[name], name)
    return found


def answer(data: bytes, *, to: str) -> dict[str, Any]:
    """The answer to a command that a line holds, or {"error": SENTENCE}; raises WireError for anything else."""
    found = message(data)
    _check(found, {"error": str} if "error" in found else ANSWERS[to], f"an answer to {to}")
    return found


def spec(data: bytes) -> dict[str, Any]:
    """The specification of a nursery's agents that a line holds, the token as bytes; raises WireError for another."""
    found = message(data, most_bytes=MAX_SPEC_BYTES)
    _check(found, _SPEC_KEYS, "a specification")
    _check(found["transport"], _SPEC["the transport"], "the transport")
    _check(found["limits"], _SPEC["the limits"], "the limits")
    if not isinstance(found["gpus"], list) or not all(isinstance(gpu, dict) for gpu in found["gpus"]):
        raise WireError(f"the gpus of a specification are {_shown(str(found['gpus']))}, no list of objects")
    for gpu in found["gpus"]:
        _check(gpu, _SPEC["a GPU"], "a GPU")
    try:
        found["token"] = bytes.fromhex(found["token"])
    except ValueError:
        found["token"] = b""
    if len(found["token"]) != TOKEN_BYTES or found["chunk_bytes"] < 1:
        raise WireError(f"a specification needs {TOKEN_BYTES} bytes of token and chunks of one byte at least")
    return found


def _shown(text: str) -> str:
    """What somebody sent, as a message can repeat it: on one line, and cut where it is long."""
    text = text[:_SHOWN] + "..." * (len(text) > _SHOWN)
    return text if text.isprintable() else ascii(text)


def _check(found: Mapping[str, Any], wanted: Mapping[str, Any], name: str) -> None:
    if found.keys() != wanted.keys():
        keys = _shown(", ".join(found) or "nothing")
        raise WireError(f"{name} has {', '.join(wanted) or 'nothing'} with it, not {keys}")
    for key, kind in wanted.items():
        if not _is(found[key], kind):
            raise WireError(f"the {key} of {name} is {_shown(str(found[key]))}, which it cannot be")


def _is(value: object, kind: type) -> bool:
    """Whether a value of a message has that type: whole numbers not below 0, lists of these, tuples of faults."""
    if kind is int:
        return type(value) is int and value >= 0
    if kind is list:
        return isinstance(value, list) and all(_is(item, int) for item in value)
    if kind is tuple:
        return isinstance(value, list) and all(
            isinstance(item, dict) and item.keys() == _FAULT.keys() and all(_is(item[k], t) for k, t in _FAULT.items())
            for item in value
        )
    if kind is float:
        return isinstance(value, int | float) and value is not True and 0 < value < 1e9  # which NaN is not
    return isinstance(value, kind)


def label(*, collective: int, rank: int, chunk_bytes: int) -> bytes:
    """What goes behind a chunk: of which collective it is, at which rank it began and how long it is."""
    return _LABEL.pack(_MAGIC, rank, collective, chunk_bytes)


def label_fault(data: bytes, *, collective: int, rank: int, chunk_bytes: int) -> str | None:
    """What is wrong with the label of a chunk that should be this one; None where it is right."""
    magic, found_rank, found_collective, found_bytes = _LABEL.unpack(data)
    if magic != _MAGIC:
        return f"its label begins with {magic!r}"
    if (found_rank, found_collective, found_bytes) != (rank, collective, chunk_bytes):
        return (
            f"its label says chunk {found_rank} of collective {found_collective} with {found_bytes} bytes, "
            f"not chunk {rank} of collective {collective} with {chunk_bytes}"
        )
    return None


def greeting(*, epoch: int, rank: int, token: bytes) -> bytes:
    """The first bytes on a ring connection: the ring it belongs to, the rank that made it, and the run's token."""
    return _GREETING.pack(_HELLO, rank, epoch, token)


def greeted(data: bytes) -> tuple[bool, int, int, bytes]:
    """What GREETING_BYTES bytes say: whether they are a greeting at all, then rank, ring and token."""
    magic, rank, epoch, token = _GREETING.unpack(data)
    return magic == _HELLO, rank, epoch, token
