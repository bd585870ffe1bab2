"""The notations of links: "s0b0>s1b0" or "s0b0:s1b0" is one direction, "s0b0-s1b0" both. Pure.

A shell takes ">" for a redirection unless it is quoted, and ":" needs no quotes.
"""

import re

_NOTATION = re.compile(r"([A-Za-z][A-Za-z0-9_]*)\s*([>:-])\s*([A-Za-z][A-Za-z0-9_]*)")


def directions(text: str) -> tuple[str, ...]:
    """Return the directions that a text names, as names of links ("s0b0>s1b0"); other text is returned as it is.

    Names of classes such as "leaf-spine" look like both directions of a link, so a caller looks for these first.
    """
    match = _NOTATION.fullmatch(text.strip())
    if match is None:
        return (text,)
    a, sign, b = match.groups()
    return (f"{a}>{b}", f"{b}>{a}") if sign == "-" else (f"{a}>{b}",)
