"""Sentences for users about links that several flows can share, and about rings and paths that are only searched for.

Other modules determine these links along with placements and paths; here they are names, by configuration and mode.
"""

from collections.abc import Iterable, Mapping, Sequence

from topologies.errors import list_all, list_first

_MAX_NAMED = 4


def notes(shared: Iterable[tuple[str, Mapping[str, Sequence[str]]]]) -> tuple[str, ...]:
    """Return a sentence for each set of modes and shared links, given each configuration's label and links by mode."""
    by_label: list[tuple[str, list[str]]] = []
    for label, links_by_mode in shared:
        modes_by_links: dict[tuple[str, ...], list[str]] = {}
        for mode, links in links_by_mode.items():
            if links:
                modes_by_links.setdefault(tuple(links), []).append(mode)
        sentences = []
        for links, modes in modes_by_links.items():
            named = f"the {'links' if len(links) > 1 else 'link'} {list_first(links, _MAX_NAMED)}"
            sentences.append(f"in {list_all(modes)} flows can share {named}: the model gives them max-min fair shares")
        by_label.append((label, sentences))
    return by_sentence(by_label)


def searched_notes(gaps: Iterable[tuple[str, str, Mapping[str, float]]], *, most: int, count: int) -> tuple[str, ...]:
    """Return a sentence for each configuration whose rings are searched for, as a site has more than `most` GPUs.

    `gaps` has for each configuration its label, the objective of its rings, and by mode the largest possible gap
    between their objective and its minimum under the first `count` conditions, as a share of the minimum.
    """
    return tuple(
        f"{label}: with more than {most} GPUs in a site the rings of {list_all(list(by_mode))} are searched for; under "
        f"the first {count} conditions their {objective} is at most "
        f"{list_all([f'{100 * gap:.2g} %' for gap in by_mode.values()])} above the minimum"
        for label, objective, by_mode in gaps
    )


def greedy_notes(modes: Iterable[tuple[str, Sequence[str]]], *, most: int) -> tuple[str, ...]:
    """Return a sentence for each set of modes that choose WAN paths greedily, given labels and such modes.

    `most` is the largest number of path combinations that are compared exhaustively.
    """
    why = f"crossings that can share links have more than {most:,} combinations of WAN paths"
    words = "in {} " + why + ": they are chosen greedily by load"
    return by_sentence([(label, [words.format(list_all(greedy))] if greedy else []) for label, greedy in modes])


def choice_notes(choices: Iterable[tuple[str, Mapping[str, Sequence[str]]]]) -> tuple[str, ...]:
    """Return a sentence for each set of modes that re-choose what there is only one of ("WAN path", "ring"), given each
    configuration's label and such things by mode."""
    by_label: list[tuple[str, list[str]]] = []
    for label, things_by_mode in choices:
        modes_by_thing: dict[str, list[str]] = {}
        for mode, things in things_by_mode.items():
            for thing in things:
                modes_by_thing.setdefault(thing, []).append(mode)
        whose = {"WAN path": "no flow has more than one WAN path"}
        by_label.append(
            (
                label,
                [
                    f"{list_all(modes)} {'has' if len(modes) == 1 else 'have'} no {thing} to choose: "
                    f"{whose.get(thing, f'there is only one {thing}')}"
                    for thing, modes in modes_by_thing.items()
                ],
            )
        )
    return by_sentence(by_label)


def loss_notes(losses: Iterable[tuple[str, float]]) -> tuple[str, ...]:
    """Return a sentence for each loss rate of WAN links, given each configuration's label and share of lost frames."""
    words = "WAN links lose {:g} of all frames in the emulation: the model does not include these losses"
    return by_sentence([(label, [words.format(share)] if share else []) for label, share in losses])


def by_sentence(by_label: Sequence[tuple[str, Sequence[str]]]) -> tuple[str, ...]:
    """Return each sentence once, after the labels of the configurations that it is about, unless it is about all."""
    labels_of: dict[str, list[str]] = {}
    for label, sentences in by_label:
        for sentence in sentences:
            labels_of.setdefault(sentence, []).append(label)
    return tuple(
        sentence if len(having) == len(by_label) else f"{list_first(having, _MAX_NAMED, '; ')}: {sentence}"
        for sentence, having in labels_of.items()
    )
