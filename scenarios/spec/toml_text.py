"""A document as TOML that people read: arrays on one line where they fit, as scenarios have them."""

from collections.abc import Mapping
from typing import Any

import tomli_w

_WIDTH = 120


def toml_text(document: Mapping[str, Any]) -> str:
    """Return a document as TOML with each array on one line, unless it is longer than 120 characters and in no inline
    table; tomli_w gives each element a line of its own, also in inline tables."""
    lines = list[str]()
    opened = list[int]()
    for read in tomli_w.dumps(document).removesuffix("\n").split("\n"):  # strings may have other line breaks
        line = read
        if opened and line.lstrip().startswith("]"):
            first = opened.pop()
            items = [item.strip() for item in lines[first + 1 :]]
            whole = f"{lines[first]}{' '.join(items).removesuffix(',')}{line.lstrip()}"
            is_flat = not any(item.endswith("[") or item.startswith("]") for item in items)
            if is_flat and ("{ " in lines[first] or len(whole) <= _WIDTH):
                del lines[first:]
                line = whole
        if line.endswith("["):  # no string: these end with a quotation mark, and have no line breaks
            opened.append(len(lines))
        lines.append(line)
    return "\n".join([*lines, ""])
