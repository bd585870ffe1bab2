"""One JSON object a line: how both sides of the controller's socket read and write a message. Imports nothing big."""

import json
import math
from collections.abc import Mapping
from typing import Any, NoReturn

_SHOWN = 60  # characters of a wrong value that an error repeats


class ProtocolError(ValueError):
    """A message that cannot be understood or asks for what there is not: one sentence with the value at fault."""


def write_line(message: Mapping[str, Any]) -> bytes:
    """A message as it is sent. Raises ValueError for a number that JSON has not."""
    return json.dumps(message, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def read_object(line: str | bytes) -> dict[str, Any]:
    """The JSON object in a text. Raises ProtocolError where there is none."""
    try:
        value = json.loads(line, parse_constant=_refuse)
    except ProtocolError:
        raise
    except (ValueError, RecursionError):  # bytes that are no UTF-8 are a ValueError too
        raise ProtocolError(f"{show(line)} is no JSON") from None
    if not isinstance(value, dict):
        raise ProtocolError(f"{show(value)} is no JSON object")
    return value


def show(value: object) -> str:
    """A value on one line, cut short; a float too large to be one is infinite by now."""
    if isinstance(value, float) and not math.isfinite(value):
        return "beyond every float"
    text = repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def _refuse(constant: str) -> NoReturn:
    raise ProtocolError(f"{constant} is no number here")
