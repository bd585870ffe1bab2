"""The notations of links: "s0b0>s1b0" or "s0b0:s1b0" is one direction, "s0b0-s1b0" both. Pure.

Of several cables between the same two nodes, all but the first have a number: "s0b0>s1b0#2". A shell takes ">" for a
redirection unless it is quoted, and ":" needs no quotes.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence

_NOTATION = re.compile(r"([A-Za-z][A-Za-z0-9_]*)\s*([>:-])\s*([A-Za-z][A-Za-z0-9_]*)(?:#([1-9][0-9]{0,3}))?")


def end(node: str, number: int) -> str:
    """Return the far end of a cable as neighbours know it: the node, with the number of a cable that is not the first
    to it ("s1b0#2")."""
    return node if number == 1 else f"{node}#{number}"


def node_of(end: str) -> str:
    """Return the node of a far end."""
    return end.partition("#")[0]


def number_of(end: str) -> int:
    """Return the number of the cable to a far end, from 1 on."""
    return int(end.partition("#")[2] or 1)


def numbers(pairs: Iterable[tuple[str, str]]) -> tuple[int, ...]:
    """Return for each cable, a pair of nodes, which one between these nodes it is, from 1 on."""
    count = Counter[frozenset[str]]()
    found = []
    for pair in pairs:
        count[frozenset(pair)] += 1
        found.append(count[frozenset(pair)])
    return tuple(found)


def both(a: str, b: str, number: int = 1) -> tuple[str, str]:
    """Return the names of both directions of a cable: ("s0b0>s1b0#2", "s1b0>s0b0#2")."""
    return f"{a}>{end(b, number)}", f"{b}>{end(a, number)}"


def reverse(link: str) -> str:
    """Return the name of the other direction of a cable: "s1b0>s0b0#2" of "s0b0>s1b0#2"."""
    src, _, far = link.partition(">")
    return both(src, node_of(far), number_of(far))[1]


def in_short(names: Sequence[str]) -> list[str]:
    """Return these directions, a cable of which both are among them as "s0b0-s1b0", at the place of the first."""
    short = dict[str, None]()
    for name in names:
        back = reverse(name)
        first = min(name, back, key=names.index) if back in names else name
        short[first.replace(">", "-") if back in names else name] = None
    return list(short)


def directions(text: str) -> tuple[str, ...]:
    """Return the directions that a text names, as names of links ("s0b0>s1b0"); other text is returned as it is.

    Names of classes such as "leaf-spine" look like both directions of a link, so a caller looks for these first.
    """
    match = _NOTATION.fullmatch(text.strip())
    if match is None:
        return (text,)
    a, sign, b, number = match.groups()
    names = both(a, b, int(number or 1))
    return names if sign == "-" else names[:1]
