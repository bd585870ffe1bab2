"""Sentences for users about links that several flows can share, rings and paths that are only searched for, and keys
that the timing model does not include.

Other modules determine these links along with placements and paths; here they are names, by configuration and mode.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from analysis.statistics.contests import differing_words
from analysis.statistics.unmodelled_keys import INSTEAD
from topologies.errors import list_all, list_first

_MAX_NAMED, _MAX_VALUES, _MAX_LINKS = 4, 6, 2
_FAIR = "gives them max-min fair shares"
_BY_CLASS = (
    "serves their classes in the order of priority on WAN links, and gives flows of one class max-min fair shares"
)


@dataclass(frozen=True)
class Valued:
    """A sentence with a value that differs among configurations: the `whole` one, and the two parts in which it is
    told of several, after each other: what is `common`, and the `value`."""

    whole: str
    common: str
    value: str


Note = str | Valued


def notes(shared: Iterable[tuple[str, Mapping[str, Sequence[str]], bool]]) -> tuple[str, ...]:
    """Return sentences on the modes in which flows can share links, given each configuration's label, the names of
    such links by mode, and whether its flows have classes."""
    by_label = list[tuple[str, list[Note]]]()
    for label, links_by_mode, has_classes in shared:
        what = _BY_CLASS if has_classes else _FAIR
        modes_by_links: dict[tuple[str, ...], list[str]] = {}
        for mode, links in links_by_mode.items():
            if links:
                modes_by_links.setdefault(tuple(links), []).append(mode)
        sentences = list[Note]()
        for links, modes in modes_by_links.items():
            named = f"the {'links' if len(links) > 1 else 'link'} {list_first(links, _MAX_NAMED)}"
            whole = f"in {list_all(modes)} flows can share {named}: the model {what}"
            common = f"flows can share links, and the model {what}"
            sentences.append(Valued(whole, common, f"{list_first(links, _MAX_LINKS)} in {list_all(modes)}"))
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


def delay_notes(messages: Iterable[tuple[str, Mapping[str, int]]]) -> tuple[str, ...]:
    """Return a sentence for each set of modes that choose among WAN paths of other delays by the time of one message
    although flows send several, given each configuration's label and the number of messages by mode."""
    by_label = list[tuple[str, list[Note]]]()
    for label, by_mode in messages:
        modes_by_number: dict[int, list[str]] = {}
        for mode, number in by_mode.items():
            if number > 1:
                modes_by_number.setdefault(number, []).append(mode)
        by_label.append((label, [_delay_note(number, modes) for number, modes in modes_by_number.items()]))
    return by_sentence(by_label)


def _delay_note(number: int, modes: Sequence[str]) -> Valued:
    who = f"{list_all(modes)} {'chooses' if len(modes) == 1 else 'choose'}"
    rule = f"{who} WAN paths by delay and the time of one message (docs/policies.md): where a flow sends"
    then = "a longer path with a higher rate may be faster"
    return Valued(f"{rule} {number:,}, as here, {then}", f"{rule} several, {then}", f"{number:,} messages")


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


def free_change_notes(modes: Iterable[tuple[str, Sequence[str], Sequence[str]]]) -> tuple[str, ...]:
    """Return a sentence for each set of modes that decide by themselves when to re-route and are compared with modes
    that always do, where changes cost nothing, given each configuration's label, the former and the latter."""
    words = (
        "when to re-route is for {} to decide, and paths are re-chosen for every collective in {}: changes cost "
        "nothing here, as control.counted is false"
    )
    return by_sentence(
        [
            (label, [words.format(list_all(deciding), list_all(always))] if deciding and always else [])
            for label, deciding, always in modes
        ]
    )


def unmodelled_notes(told: Iterable[tuple[str, Sequence[str]]]) -> tuple[str, ...]:
    """Return a sentence for each key that the timing model does not include, given each configuration's label and those
    of these keys that it sets."""
    words = "the timing model does not include {}: in it {}"
    return by_sentence([(label, [words.format(key, INSTEAD[key]) for key in keys]) for label, keys in told])


def by_sentence(by_label: Sequence[tuple[str, Sequence[Note]]]) -> tuple[str, ...]:
    """Return each sentence once, after the configurations that it is about, unless it is about all. Sentences that say
    the same of different configurations with other values are one, with the configurations of each value.

    Configurations are given by their labels, and named by what differs among these.
    """
    labels_of: dict[Note, list[str]] = {}
    for label, sentences in by_label:
        for sentence in sentences:
            labels_of.setdefault(sentence, []).append(label)
    alike: dict[str, list[Note]] = {}
    for sentence in labels_of:
        alike.setdefault(sentence.common if isinstance(sentence, Valued) else sentence, []).append(sentence)
    named = dict(zip(labels := [label for label, _ in by_label], differing_words(labels), strict=True))
    return tuple(
        _merged(common, {one: [named[label] for label in labels_of[one]] for one in group}, len(by_label))
        for common, group in alike.items()
    )


def _merged(common: str, names: Mapping[Note, Sequence[str]], total: int) -> str:
    """Return the sentence that notes with the same `common` part are, given the configurations that each is about."""
    if len(names) == 1:
        ((only, having),) = names.items()
        whole = only.whole if isinstance(only, Valued) else only
        return whole if len(having) == total else f"{list_first(having, _MAX_NAMED, '; ')}: {whole}"
    values = dict[tuple[str, ...], list[str]]()  # what has the same names is told together
    for one, having in names.items():
        values.setdefault(tuple(having), []).append(one.value if isinstance(one, Valued) else one)
    parts = [
        f"{', and '.join(some)}" + (f" ({list_first(having, _MAX_NAMED, '; ')})" if len(having) < total else "")
        for having, some in values.items()
    ]
    return f"{common}: {list_first(parts, _MAX_VALUES, '; ')}"
