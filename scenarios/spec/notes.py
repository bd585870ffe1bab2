"""What a user should know of a scenario before it runs. This is the one place that commands and the API ask."""

from collections.abc import Mapping, Sequence
from itertools import groupby

from analysis.statistics.contests import Value
from hosts.agent.transport import TCP
from scenarios.spec import file_notes, paces, physical_limits
from scenarios.spec.labels import setting_of
from scenarios.spec.pieces import CANDIDATES
from scenarios.spec.scenario import Scenario
from topologies.errors import list_all, list_first

_ANOTHER = "--set collective.pieces=N sets another number"
_MOST_GROUPS, _MOST_RUNS = 3, 5  # that are named
_MOST_NUMBERS = 12  # groups with numbers of their own: any of a dozen algorithms may be the one that is asked for


def notes_on(configs: Sequence[Scenario], *, emulates: bool) -> tuple[str, ...]:
    """Return a sentence for each value that was rounded or chosen, key without effect, assumption of files, loss
    that is not one of frames, repetition that is due too soon, and physical limit that configurations are beyond;
    raises SpecError without the files.

    With `emulates` the emulation will run, and limits beyond which it refuses to are left to it.
    """
    of_files, of_limits = file_notes.notes_on(configs), physical_limits.notes_on(configs, emulates=emulates)
    return (*of_files, *_chosen_pieces(configs), *paces.notes_on(configs), *_segments_lost(configs), *of_limits)


def _segments_lost(configs: Sequence[Scenario]) -> list[str]:
    """Return a sentence if faults lose packets: segments of many frames, which links queue and lose as a whole."""
    of_tcp = [config for config in configs if config.transport.protocol == TCP]  # packets of RoCE are frames
    lossy = dict.fromkeys(one.what for config in of_tcp for one in config.faults if one.kind == "link loss")
    if not lossy:
        return []
    return [
        f"fault ({list_first([*lossy], _MOST_GROUPS)}): that share of TCP's segments is lost, each as a whole, of up "
        "to 500 kB; it is not that share of frames, which fabric.wan_loss loses"
    ]


def _chosen_pieces(configs: Sequence[Scenario]) -> list[str]:
    """Return a sentence if the timing model has chosen to split the blocks of some configurations."""
    chosen = [config for config in configs if config.collective.chooses]
    numbers = {config.collective.pieces or 1 for config in chosen}
    capped = [config for config in chosen if config.has_most_pieces]
    if numbers <= {1}:
        untried = list_all(list(dict.fromkeys(map(_collective, capped)))) if capped else ""
        why = f"collective.pieces: 1, as larger numbers, of many messages, were not tried for {untried}; {_ANOTHER}"
        return [why] if capped else []
    among = (
        f"within 1 % of the fastest of {CANDIDATES[0]} to {CANDIDATES[-1]} by the timing model over fixed paths at the "
        "links' mean rates"
    )
    words = _by_values([({v.key: v for v in setting_of(0, one).at}, one.collective.pieces or 1) for one in chosen])
    spread = [f'"{name}"' for name in dict.fromkeys(one.fabric.routing for one in chosen) if name != "single"]
    other = f" (with fabric.routing {list_all(spread)} others may be faster)" if spread else ""
    return [f"collective.pieces: {words}, {among}{other}{_most_tried(capped, chosen)}; {_ANOTHER}"]


def _most_tried(capped: Sequence[Scenario], chosen: Sequence[Scenario]) -> str:
    """Return for which algorithms, and at which swept values if not at all of those `chosen` for, the number is the
    largest that was tried: there a larger one may be faster."""
    alike: dict[str, list[tuple[tuple[Value, ...], int, bool]]] = {}
    for one in chosen if capped else ():
        found = setting_of(0, one).at, one.collective.pieces or 1, one.has_most_pieces
        alike.setdefault(_collective(one), []).append(found)
    names: dict[int, dict[str, list[str]]] = {}
    for name, of_name in alike.items():
        for at, number, is_most in of_name:
            others = [values for values, *found in of_name if found != [number, is_most]]
            words = [value.words for value in at if any(value not in values for values in others)]
            if is_most:
                names.setdefault(number, {}).setdefault(name, []).append(", ".join(words))
    parts = [
        f"{number} for {list_all([f'{name}{_at_values(at)}' for name, at in of_number.items()])}"
        for number, of_number in sorted(names.items())
    ]
    return f" ({list_all(parts)}: the most that were tried, so more may be faster)" if parts else ""


def _at_values(at: Sequence[str]) -> str:
    """Return at which values something holds: " at 32 GPUs and 64 GPUs"; "" for all."""
    named = [*dict.fromkeys(filter(None, at))]
    return f" at {list_first(named, _MOST_GROUPS, separator='; ')}" if named else ""


def _collective(config: Scenario) -> str:
    return f"{config.collective.kind} {config.workload.algorithm}"


def _by_values(chosen: Sequence[tuple[Mapping[str, Value], int]]) -> str:
    """Return numbers by the swept values that they depend on: "1 up to 4 MB buffer, 8 from 16 MB buffer on (ring)"."""
    keys = [key for key in chosen[0][0] if _depends(chosen, key)]
    if not keys:
        return str(chosen[0][1])
    counts = {key: len({values[key].words for values, _ in chosen}) for key in keys}
    ordered = [key for key in keys if all(values[key].number is not None for values, _ in chosen)]
    along = max(ordered, key=counts.__getitem__, default=keys[-1])
    groups: dict[str, list[tuple[Value, int]]] = {}
    for values, number in chosen:
        name = ", ".join(values[key].words for key in keys if key != along)
        groups.setdefault(name, []).append((values[along], number))
    names: dict[tuple[str, ...], list[str]] = {}
    for name, members in groups.items():
        runs = _runs(members) if along in ordered else _unordered(members)
        names.setdefault(tuple(runs), []).append(name)
    parts = [
        list_first(runs, _MOST_RUNS) + (f" ({list_first(those, _MOST_GROUPS, separator='; ')})" if all(those) else "")
        for runs, those in names.items()
    ]
    return list_first(parts, _MOST_NUMBERS, separator="; ")


def _depends(chosen: Sequence[tuple[Mapping[str, Value], int]], key: str) -> bool:
    """Return whether numbers differ where only the value of this key does."""
    found: dict[tuple[str, ...], set[int]] = {}
    for values, number in chosen:
        others = tuple(value.words for name, value in values.items() if name != key)
        found.setdefault(others, set()).add(number)
    return any(len(numbers) > 1 for numbers in found.values())


def _runs(members: Sequence[tuple[Value, int]]) -> list[str]:
    """Return the numbers along a quantity: "1 up to 4 MB buffer", "8 from 16 MB buffer on"."""
    known = {value.words: (value, number) for value, number in members}
    line = sorted(known.values(), key=lambda one: one[0].number or 0.0)
    runs = [[value.words for value, _ in run] for _, run in groupby(line, key=lambda one: one[1])]
    numbers = [number for number, _ in groupby(number for _, number in line)]
    if len(runs) == 1:
        return [str(numbers[0])]
    words = [f"at {run[0]}" if len(run) == 1 else f"from {run[0]} to {run[-1]}" for run in runs]
    if len(runs[0]) > 1:
        words[0] = f"up to {runs[0][-1]}"
    if len(runs[-1]) > 1:
        words[-1] = f"from {runs[-1][0]} on"
    return [f"{number} {where}" for number, where in zip(numbers, words, strict=True)]


def _unordered(members: Sequence[tuple[Value, int]]) -> list[str]:
    """Return the numbers by values without an order: "1 at ring or direct"."""
    values: dict[int, dict[str, None]] = {}
    for value, number in members:
        values.setdefault(number, {})[value.words] = None
    return [f"{number} at {list_first([*those], 3, separator=' or ')}" for number, those in sorted(values.items())]
