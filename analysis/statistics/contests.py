"""What a run compares: the alternatives of each contest, under conditions that they share, and their baseline.

With several modes, the modes of each configuration compete, unless the user names a swept key's value as the baseline.
With one mode, the values of swept keys do: those that somebody can choose (an algorithm, a routing, the number of
pieces) at each combination of the others (sizes, delays, rates), or all of them if there are only others. Different
work is not ranked, nor are different conditions: sizes and kinds of collectives, rates, delays and faults are set side
by side, and jobs are left to `job_times`. Seeds never compete: they repeat each alternative, and are pooled, those of
the conditions and those of ECMP's hash.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from analysis.statistics.intervals import Series, pooled_repetitions
from analysis.statistics.jobs_in_words import JOINED, Job, told_apart
from analysis.statistics.number_words import quoted
from analysis.statistics.unmodelled_keys import INSTEAD
from topologies.errors import list_all

JOBS = "job"
"""The key of the jobs of a round."""
MODE = "mode"
"""The name of the modes among what can be a baseline, beside keys of the scenario."""

BASELINE = "baseline"
"""What a table has in place of the gain of a baseline over itself."""

AS_ALL = "nothing else"
"""What tells a setting beside others that has nothing but what is common to all."""
_MOST_COMMON = 90  # characters of what settings share that each row or line tells again
_MOST_VALUES, _MOST_LEFT_OUT = 4, 2  # values by which contests are told, or contests that are not among them
_FIXED = "base"  # the mode that chooses no paths
_ROUTINGS = {"ecmp": "ECMP", "spray": "spraying", "te": "TE"}
"""The routings, as labels name them, that spread flows which no mode has routed; in a sentence."""
_BUFFER = " buffer"
"""What the part of a label ends with that tells how large the buffer is, of which blocks are parts."""
_CHOICES = (
    *(f"collective.{name}" for name in ("algorithm", "channels", "pieces", "schedule", "reembed_every", "ring")),
    *("fabric.routing", "fabric.rails", "fabric.paths", "fabric.buffer", "class", "policy"),
    *("transport.", "te.", "training.", "control.", "admission."),
)
"""The keys, or the tables, whose values somebody chooses; those of other keys are given."""
_NO_RIVALS = (
    *(JOBS, "collective.kind", "collective.chunk", "collective.size", "fault", "conditions."),
    *(
        f"training.{name}"
        for name in ("activations", "gradient_size", "forward", "backward", "weights", "held", "every")
    ),
)
"""The keys, or the table, whose values are different work or different conditions."""


SEED, HASH_SEED = "run.seed", "fabric.hash_seed"
SEEDS = (SEED, HASH_SEED)
"""The keys whose numbers are names, not quantities: their values are repetitions, which never compete."""


class Value(NamedTuple):
    """The value of a swept key: the key, the value in words ("16 GPUs"), and its coordinate if it is a quantity."""

    key: str
    words: str
    number: float | None = None


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A configuration among the others of its sweep: its index and label, the values of swept keys, and its modes.

    `baseline` has the values, in words, of the keys (and of MODE) whose baseline the user has chosen. `jobs` are the
    jobs of its rounds, `iterations` how many of training a collective has, and `hashed` the modes whose flows ECMP's
    hash spreads. `is_unmodelled` tells that the timing model's times are without some of its faults. `own` are the
    modes that the scenario itself defines.
    """

    index: int
    label: str
    kind: str
    at: tuple[Value, ...]
    modes: tuple[str, ...]
    baseline: Mapping[str, str]
    jobs: tuple[Job, ...] = ()
    hashed: tuple[str, ...] = ()
    is_unmodelled: bool = False
    iterations: int = 1
    own: tuple[str, ...] = ()


class Repetition(NamedTuple):
    """The seeds of a point in words, "" for one that is not swept: that of ECMP's hash and that of its conditions."""

    hash_seed: str
    seed: str


class Place(NamedTuple):
    """The index of a point's configuration, and its mode."""

    setting: int
    mode: str


@dataclass(frozen=True, kw_only=True)
class Contest:
    """Alternatives that are compared with each other: their points by name and seeds, and the name of their baseline.

    `hashed` are the alternatives whose flows ECMP's hash spreads. `at` are the values of the swept keys by which
    contests differ, and `label` is what all alternatives share, as their `kind` is, "" for several, and how many
    `iterations` of training a collective has. `is_choice` tells that somebody can choose among the alternatives,
    `is_named` that the user has named the baseline, `key` the one key whose values they are (or MODE), and `numbers`
    are their coordinates if they are quantities. Without `is_rivalry` they are different work, of which none is better;
    `buffers` has the sizes of their buffers, if it is these that differ, as with more GPUs and the same blocks.
    `is_unmodelled` tells that the timing model's times of some are without their faults, or all without a key whose
    values compete; such keys are `unmodelled`. `own` are those that the scenario itself defines.
    """

    label: str
    kind: str
    at: tuple[Value, ...]
    places: Mapping[str, Mapping[Repetition, Place]]
    baseline: str
    is_choice: bool
    hashed: tuple[str, ...] = ()
    is_named: bool = False
    is_rivalry: bool = True
    buffers: tuple[str, ...] = ()
    key: str | None = None
    numbers: Mapping[str, float] | None = None
    is_unmodelled: bool = False
    iterations: int = 1
    own: tuple[str, ...] = ()
    unmodelled: tuple[str, ...] = ()

    @property
    def repetitions(self) -> tuple[Repetition, ...]:
        """The seeds of its points."""
        return tuple(dict.fromkeys(one for by_seeds in self.places.values() for one in by_seeds))

    @property
    def where(self) -> str:
        """What the alternatives share, in words, and how many seeds they have."""
        known = {*self.label.split(", ")}
        values = () if self.key == MODE else self.at
        at = [value.words for value in values if value.key != JOBS and not {*value.words.split(JOINED)} <= known]
        return ", ".join(filter(None, [self.label, *at, seeds_words(self.repetitions)]))

    @property
    def all_places(self) -> tuple[Place, ...]:
        """The points of all alternatives and seeds."""
        return tuple(place for by_seed in self.places.values() for place in by_seed.values())

    def has_order(self, engine: str) -> bool:
        """Return whether an engine's times put the alternatives in order: not if they are different work, nor if they
        differ by a key that the timing model does not include."""
        return self.is_rivalry and not (engine == "model" and self.key in self.unmodelled)

    def times(self, known: Mapping[Place, Series]) -> dict[str, Series]:
        """Return the times of the alternatives that have some, given those of points, pooled over the seeds."""
        return {
            name: pooled_by_seeds({one: known[place] for one, place in by_seeds.items()}, self.repetitions)
            for name, by_seeds in self.known_places(known).items()
        }

    def known_places(self, known: Container[Place]) -> dict[str, dict[Repetition, Place]]:
        """Return the known points of the alternatives that have some, by name and seeds: with those seeds that all of
        these have, or else with all."""
        found = {
            name: {seed: place for seed, place in by_seed.items() if place in known}
            for name, by_seed in self.places.items()
        }
        found = {name: by_seed for name, by_seed in found.items() if by_seed}
        common = [seed for seed in self.repetitions if all(seed in by_seed for by_seed in found.values())]
        return {
            name: {seed: place for seed, place in by_seed.items() if seed in (common or self.repetitions)}
            for name, by_seed in found.items()
        }


def pooled_by_seeds(times: Mapping[Repetition, Series], among: Iterable[Repetition]) -> Series:
    """Return the times of one point with these seeds, which are `among` others, as one series."""
    hashes, seeds = (list(dict.fromkeys(each)) for each in zip(*among, strict=True))
    return pooled_repetitions(
        {(hashes.index(one.hash_seed), seeds.index(one.seed)): series for one, series in times.items()}
    )


def seeds_words(repetitions: Iterable[Repetition]) -> str:
    """Return how many seeds these have, if several: "3 seeds", "3 seeds with each of 4 hash seeds"."""
    hashes, seeds = (len({*each}) for each in zip(*repetitions, strict=True))
    words = [f"{seeds} seeds"] * (seeds > 1) + [f"{hashes} hash seeds"] * (hashes > 1)
    return " with each of ".join(words)


def is_choice(key: str) -> bool:
    """Return whether somebody chooses the value of a key, rather than being given it."""
    return _is_among(key, _CHOICES) and is_rivalry(key)


def is_rivalry(key: str) -> bool:
    """Return whether the values of a key compete: they are neither different work nor different conditions."""
    return not _is_among(key, _NO_RIVALS)


def _is_among(key: str, some: Sequence[str]) -> bool:
    return key in some or key.startswith(tuple(one for one in some if one.endswith(".")))


def which_words(some: Sequence[Contest], among: Sequence[Contest]) -> str:
    """Return in short which contests these are `among` others: by the values of one key, "ecmp", if these are all with
    them, or by the one or two that they are not, "all but stale 14"; "" if neither is shorter."""
    others = [one for one in among if one not in some]
    for key in dict.fromkeys(value.key for one in among for value in one.at):
        inside, outside = (
            dict.fromkeys(value.words for one in each for value in one.at if value.key == key)
            for each in (some, others)
        )
        if len(inside) <= _MOST_VALUES and len(inside) < len(some) and not {*inside} & {*outside}:
            return list_all([*inside])
    if 0 < len(others) <= _MOST_LEFT_OUT and 2 * len(others) < len(some):
        left_out = [", ".join(value.words for value in one.at) for one in others]
        return f"all but {list_all([*map(quoted, left_out)])}" if all(left_out) else ""
    return ""


def contests_of(settings: Sequence[Setting]) -> tuple[Contest, ...]:
    """Return the contests of a run's configurations, in their order; none if there is a single point, or if nothing
    that competes differs but their jobs. Where the user has named a swept key's value as the baseline, the values of
    that key compete, in each mode by itself.
    """
    varied, settings = varied_keys(settings), with_short_tables(settings)
    named = {key for one in settings for key in one.baseline} & varied
    modes = _modes_of(settings)
    if len(modes) > 1 and named:
        return tuple(contest for mode in modes for contest in contests_of(_in_mode(settings, mode)))
    if len(modes) > 1:
        return tuple(_of_modes(group, varied) for group in repetitions(settings) if len(_modes_of(group)) > 1)
    chosen = {key for key in varied if is_choice(key)}
    if not named <= chosen:  # these values compete although nobody chooses them, as the user has named a baseline
        chosen = named
    if not varied or (not chosen and JOBS in varied):
        return ()
    if not chosen:
        return (_of_values(settings, varied, is_choice=False),)
    groups: dict[tuple[str, ...], list[Setting]] = {}
    for one in settings:
        groups.setdefault(tuple(value.words for value in one.at if value.key in varied - chosen), []).append(one)
    others, are_choices = {MODE, *(varied - chosen)}, all(map(is_choice, chosen))
    return tuple(_of_values(group, chosen, is_choice=are_choices, others=others) for group in groups.values())


def _in_mode(settings: Sequence[Setting], mode: str) -> list[Setting]:
    """Return the configurations that have a mode with it alone, as if it were the value of a swept key."""
    value = Value(MODE, f"mode {mode}")
    return [replace(one, modes=(mode,), at=(*one.at, value)) for one in settings if mode in one.modes]


def repetitions(settings: Iterable[Setting]) -> list[tuple[Setting, ...]]:
    """Return the configurations in groups that differ in nothing but their seeds."""
    groups: dict[tuple[Value, ...] | int, list[Setting]] = {}
    for one in settings:
        others = tuple(value for value in one.at if value.key not in SEEDS)
        groups.setdefault(others if len(others) < len(one.at) else one.index, []).append(one)
    return [tuple(group) for group in groups.values()]


def as_in_sentences(contests: Sequence[Contest]) -> tuple[Contest, ...]:
    """Return contests whose alternatives have names that a sentence can list: of several values in quotes. Base tells
    how its flows are routed, "base (ECMP)", if not over fixed paths and alike in all contests."""
    routings = {_routing_of(one) for one in contests}
    (routing,) = routings if len(routings) == 1 else ("",)
    base = f"{_FIXED} ({_ROUTINGS[routing]})" if routing else _FIXED
    return tuple(
        _renamed(one, {name: base if name == _FIXED else quoted(name) for name in one.places}) for one in contests
    )


def _renamed(contest: Contest, names: Mapping[str, str]) -> Contest:
    return replace(
        contest,
        places={names[name]: by_seed for name, by_seed in contest.places.items()},
        baseline=names[contest.baseline],
        hashed=tuple(names[name] for name in contest.hashed),
        own=tuple(names[name] for name in contest.own),
        numbers=None if contest.numbers is None else {names[name]: at for name, at in contest.numbers.items()},
    )


def _routing_of(contest: Contest) -> str:
    """Return the routing of a contest of modes, "" for fixed paths."""
    words = contest.label.split(", ") if contest.key == MODE else []
    return next((routing for routing in _ROUTINGS if {routing, f"routing {routing}"} & {*words}), "")


def baselines_of(settings: Sequence[Setting]) -> dict[Place, tuple[str, Place]]:
    """Return for every point of a contest the name and the point of its baseline.

    It has the point's seed. Values that nobody chooses, such as sizes, have one only if the user has named it.
    """
    return {
        place: (one.baseline, one.places[one.baseline][seed])
        for one in contests_of(settings)
        if one.is_choice or any(setting.baseline for setting in settings)
        for by_seed in one.places.values()
        for seed, place in by_seed.items()
        if seed in one.places[one.baseline]
    }


def with_short_tables(settings: Sequence[Setting]) -> list[Setting]:
    """Return configurations in which the words of swept tables tell only what not all of them have."""
    short: dict[str, dict[str, str]] = {JOBS: dict(zip(*_jobs_in_short(settings), strict=True))}
    for key in {value.key for one in settings for value in one.at} - {JOBS}:
        words = list(dict.fromkeys(value.words for one in settings for value in one.at if value.key == key))
        entries = [one.split(JOINED) for one in words]
        apart = [[each for each in one if any(each not in other for other in entries)] for one in entries]
        if any(len(one) > 1 for one in entries) and all(apart):
            short[key] = {one: JOINED.join(left) for one, left in zip(words, apart, strict=True)}
    return [
        replace(
            one,
            at=tuple(value._replace(words=short.get(value.key, {}).get(value.words, value.words)) for value in one.at),
        )
        for one in settings
    ]


def _jobs_in_short(settings: Sequence[Setting]) -> tuple[list[str], list[str]]:
    """Return the words of the jobs of configurations in which they are swept: as they are, and in short."""
    words = [(value.words, one.jobs) for one in settings for value in one.at if value.key == JOBS]
    return [each for each, _ in words], told_apart([jobs for _, jobs in words]) if words else []


def varied_keys(settings: Iterable[Setting]) -> set[str]:
    """Return the keys that have several values, except for seeds."""
    values: dict[str, set[str]] = {}
    for one in settings:
        for value in one.at:
            values.setdefault(value.key, set()).add(value.words)
    return {key for key, words in values.items() if len(words) > 1 and key not in SEEDS}


def _modes_of(group: Iterable[Setting]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(mode for one in group for mode in one.modes))


def _of_modes(group: Sequence[Setting], varied: set[str]) -> Contest:
    first, modes = group[0], _modes_of(group)
    wanted = first.baseline.get(MODE, "base")
    return Contest(
        label=shared_words([one.label for one in group]),
        kind=first.kind,
        at=tuple(value for value in first.at if value.key in varied),
        places={
            mode: {repetition_of(one): Place(one.index, mode) for one in group if mode in one.modes} for mode in modes
        },
        hashed=tuple(mode for mode in modes if any(mode in one.hashed for one in group)),
        baseline=wanted if wanted in modes else modes[0],
        is_choice=True,
        is_named=MODE in first.baseline,
        key=MODE,
        is_unmodelled=any(one.is_unmodelled for one in group),
        iterations=first.iterations,
        own=tuple(mode for mode in modes if mode in first.own),
    )


def _of_values(group: Sequence[Setting], keys: set[str], *, is_choice: bool, others: Iterable[str] = ()) -> Contest:
    named: dict[str, Setting] = {}
    places: dict[str, dict[Repetition, Place]] = {}
    for alike in repetitions(group):
        name = _name(alike[0], keys)
        name = name if name not in named else f"{name} (no. {len(named) + 1})"
        named[name] = alike[0]
        places[name] = {repetition_of(one): Place(one.index, one.modes[0]) for one in alike}
    only = next(iter(keys)) if len(keys) == 1 else None
    unmodelled = tuple(key for key in INSTEAD if key in keys)
    numbers = {
        name: value.number
        for name, one in named.items()
        for value in one.at
        if value.key == only and value.number is not None
    }
    buffers = tuple(dict.fromkeys(_buffer_of(one) for one in group)) if all(map(is_rivalry, keys)) else ()
    return Contest(
        label=shared_words([one.label for one in group]),
        kind=group[0].kind if len({(one.kind, one.iterations) for one in group}) == 1 else "",
        at=tuple(value for value in group[0].at if value.key in others),
        places=places,
        hashed=tuple(name for name, one in named.items() if one.modes[0] in one.hashed),
        baseline=_baseline(named, keys),
        is_choice=is_choice,
        is_named=any(key in group[0].baseline for key in keys),
        is_rivalry=all(map(is_rivalry, keys)) and len(buffers) == 1,
        buffers=buffers if len(buffers) > 1 else (),
        key=only,
        numbers=numbers if len(numbers) == len(named) else None,
        is_unmodelled=bool(unmodelled) or any(one.is_unmodelled for one in group),
        iterations=group[0].iterations,
        unmodelled=unmodelled,
    )


def _buffer_of(one: Setting) -> str:
    """Return how large the buffer of a configuration is, in words; "" where its label does not tell."""
    return next((part.removesuffix(_BUFFER) for part in one.label.split(", ") if part.endswith(_BUFFER)), "")


def _baseline(named: Mapping[str, Setting], keys: set[str]) -> str:
    """Return the name of the alternative with the wanted values, or else with the first ones."""
    first = next(iter(named.values()))
    wanted = {value.key: first.baseline.get(value.key, value.words) for value in first.at if value.key in keys}
    return next(
        (
            name
            for name, one in named.items()
            if all(wanted[value.key] == value.words for value in one.at if value.key in keys)
        ),
        next(iter(named)),
    )


def repetition_of(one: Setting) -> Repetition:
    """Return the seeds of a configuration."""
    words = {value.key: value.words for value in one.at}
    return Repetition(words.get(HASH_SEED, ""), words.get(SEED, ""))


def _name(one: Setting, keys: set[str]) -> str:
    return ", ".join(value.words for value in one.at if value.key in keys)


def differing_words(labels: Sequence[str]) -> list[str]:
    """Return of each label the parts that not all have: "8 MB" of "8 GPUs, 8 MB, 10 us" beside "8 GPUs, 64 MB, 10 us".
    A label without such a part is returned whole."""
    shared = {*(shared_words(labels).split(", ") if labels else ())}
    return [", ".join(part for part in label.split(", ") if part not in shared) or label for label in labels]


def without_common(labels: Sequence[str], most: int = _MOST_COMMON) -> tuple[str, list[str]]:
    """Return the parts that all labels have, if these have more than `most` characters, and each label without them;
    else "" and the labels as they are. Of several labels one that has no other part is AS_ALL, of a single one "" is
    left."""
    common = shared_words(labels) if labels else ""
    if len(common) <= most:
        return "", [*labels]
    parts = {*common.split(", ")}
    own = [", ".join(part for part in label.split(", ") if part not in parts) for label in labels]
    return common, [one or AS_ALL for one in own] if any(own) else own


def shared_words(labels: Sequence[str]) -> str:
    """Return the parts that all labels have: "8 GPUs, 10 us" of "8 GPUs, 8 MB, 10 us" and "8 GPUs, 64 MB, 10 us"."""
    parts = [label.split(", ") for label in labels]
    return ", ".join(part for part in parts[0] if all(part in other for other in parts[1:]))
