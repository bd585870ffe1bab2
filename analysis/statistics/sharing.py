"""Which links several flows of a collective can use at once, in sentences.

Which links they are is decided with the placements and the paths; here they are names, by configuration and mode.
"""

from collections.abc import Iterable, Mapping, Sequence

from topologies.errors import first_of, listed

_MOST_NAMED = 4


def notes(shared: Iterable[tuple[str, Mapping[str, Sequence[str]]]]) -> tuple[str, ...]:
    """A sentence for each set of modes and links: the configurations' labels, each with the shared links by mode."""
    configurations = list(shared)
    found: dict[str, list[str]] = {}
    for label, by_mode in configurations:
        modes: dict[tuple[str, ...], list[str]] = {}
        for mode, links in by_mode.items():
            if links:
                modes.setdefault(tuple(links), []).append(mode)
        for links, sharing in modes.items():
            named = f"the link{'s' * (len(links) > 1)} {first_of(links, _MOST_NAMED)}"
            words = f"in {listed(sharing)} flows can share {named}: the model gives them max-min fair shares"
            found.setdefault(words, []).append(label)
    return tuple(
        text if len(labels) == len(configurations) else f"{first_of(labels, _MOST_NAMED, '; ')}: {text}"
        for text, labels in found.items()
    )
