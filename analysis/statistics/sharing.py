"""Which links several flows of a collective can use at once, and how paths are chosen then, in sentences.

Which links they are is decided with the placements and the paths; here they are names, by configuration and mode.
"""

from collections.abc import Iterable, Mapping, Sequence

from topologies.errors import first_of, listed

_MOST_NAMED = 4


def notes(shared: Iterable[tuple[str, Mapping[str, Sequence[str]]]]) -> tuple[str, ...]:
    """A sentence for each set of modes and links: the configurations' labels, each with the shared links by mode."""
    found: list[tuple[str, list[str]]] = []
    for label, by_mode in shared:
        modes: dict[tuple[str, ...], list[str]] = {}
        for mode, links in by_mode.items():
            if links:
                modes.setdefault(tuple(links), []).append(mode)
        sentences = []
        for links, sharing in modes.items():
            named = f"the link{'s' * (len(links) > 1)} {first_of(links, _MOST_NAMED)}"
            words = f"in {listed(sharing)} flows can share {named}: the model gives them max-min fair shares"
            sentences.append(words)
        found.append((label, sentences))
    return _by_sentence(found)


def searched_notes(gaps: Iterable[tuple[str, str, Mapping[str, float]]], *, most: int, count: int) -> tuple[str, ...]:
    """A sentence on the rings of each configuration that are searched for, as a site has more than `most` GPUs.

    `gaps`: of each configuration its label, the objective of its rings, and by mode how far above the least possible
    value of that they can be at most under the first `count` conditions, as a share of it.
    """
    return tuple(
        f"{label}: with more than {most} GPUs in a site the rings of {listed(list(by_mode))} are searched for; under "
        f"the first {count} conditions their {objective} is at most "
        f"{listed([f'{100 * gap:.2g} %' for gap in by_mode.values()])} above the least possible"
        for label, objective, by_mode in gaps
    )


def greedy_notes(modes: Iterable[tuple[str, Sequence[str]]], *, most: int) -> tuple[str, ...]:
    """A sentence for each set of modes that choose WAN paths greedily: the configurations' labels, each with its modes.

    `most` combinations of paths are compared.
    """
    why = f"crossings that can share links have more than {most:,} combinations of WAN paths"
    words = "in {} " + why + ": they are chosen greedily by load"
    return _by_sentence([(label, [words.format(listed(greedy))] if greedy else []) for label, greedy in modes])


def loss_notes(losses: Iterable[tuple[str, float]]) -> tuple[str, ...]:
    """A sentence for each share of frames that WAN links lose: the configurations' labels, each with its share."""
    words = "WAN links lose {:g} of all frames in the emulation: the model knows nothing of it"
    return _by_sentence([(label, [words.format(share)] if share else []) for label, share in losses])


def _by_sentence(found: Sequence[tuple[str, Sequence[str]]]) -> tuple[str, ...]:
    """Each sentence once, behind the labels of the configurations that it is true of unless it is of all."""
    labels: dict[str, list[str]] = {}
    for label, sentences in found:
        for sentence in sentences:
            labels.setdefault(sentence, []).append(label)
    return tuple(
        sentence if len(which) == len(found) else f"{first_of(which, _MOST_NAMED, '; ')}: {sentence}"
        for sentence, which in labels.items()
    )
