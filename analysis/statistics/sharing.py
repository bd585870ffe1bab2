"""Warnings about WAN links that several flows of a collective can use at once, which the timing model ignores.

Which links they are is decided with the rings and the paths; here they are names, by configuration and mode.
"""

from collections.abc import Iterable, Mapping, Sequence

_MOST_NAMED = 4


def warnings(shared: Iterable[tuple[str, Mapping[str, Sequence[str]]]]) -> tuple[str, ...]:
    """A sentence for each set of modes and links: the configurations' labels, each with the shared links by mode."""
    configurations = list(shared)
    found: dict[str, list[str]] = {}
    for label, by_mode in configurations:
        modes: dict[tuple[str, ...], list[str]] = {}
        for mode, links in by_mode.items():
            if links:
                modes.setdefault(tuple(links), []).append(mode)
        for links, sharing in modes.items():
            words = f"in {_listed(sharing)} two crossings of a ring can share {_named(links)}: the model gives each the"
            found.setdefault(f"{words} whole link, so it can predict too short a time", []).append(label)
    every = len(configurations)
    return tuple(
        text if len(labels) == every else f"{_shortened(labels, separator='; ')}: {text}"
        for text, labels in found.items()
    )


def _named(links: Sequence[str]) -> str:
    return f"the WAN link{'s' * (len(links) > 1)} {_shortened(links, separator=', ')}"


def _shortened(names: Sequence[str], *, separator: str) -> str:
    more = len(names) - _MOST_NAMED
    return separator.join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _listed(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]
