"""Reads scenarios from files and options, and writes them; mistakes are reported together, with their locations."""

import os
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import tomli_w

from analysis.statistics.claims import PAPER_ORDER, has_paper_values
from hosts.collectives.kinds import TRAINING
from scenarios.policies.policy import MODES
from scenarios.spec import FOLDER, ScenarioError, scenario_names
from scenarios.spec.changed_files import forget_changed, remember_files
from scenarios.spec.consistency import inconsistencies
from scenarios.spec.keys import KEYS, MAX_AXIS_VALUES, SWEPT
from scenarios.spec.roles import of_tables
from scenarios.spec.scenario import BEFORE, DEFAULTS, Axis, Scenario, plain_values
from scenarios.spec.toml_text import toml_text
from scenarios.spec.unused_keys import unused_keys
from scenarios.spec.values import unique
from topologies.errors import Mistake, SpecError, did_you_mean, elements, format_value, one_line
from topologies.fabric.maps import GRAPHML
from topologies.packs import table as packs
from topologies.text_files import TextFileError, read_text
from topologies.units import RATE, SIZE, rounding

MAX_BYTES = 64 * 1024
"""Size of the largest scenario file that is read, in bytes."""

_KNOWN = (*KEYS, *(f"sweep.{key}" for key in SWEPT))
_TABLES = (*dict.fromkeys(key.table for key in KEYS.values() if key.table), "sweep")
_OF_TABLES = ("program", "job", "class", "policy", "fault")  # lists of tables; [program] may be one table


_ONLY_OPTIONS = ("jobs", "engine", "out", "dask", "json", "exec", "resume")  # of run.py, and no keys
DATA = "--data"
"""The key of the override that names the folder of packs' data; by default it is that of the scenario's file."""
_OF_PACKS = ("fabric.wan", "conditions.load", "conditions.moves")  # keys whose values may name a pack
_LISTS = {f"{prefix}{name}" for name in ("job", "class", "policy", "fault") for prefix in ("", "sweep.")}
_MAX_TYPED = 80  # characters of an option that a message repeats
OWN_NAME = "run"
"""The name of a user's own experiment that has none: the paper's setting with other values."""
_ALTERNATIVES = (("collective.chunk", "collective.size"), ("program.command", "program.role"))
"""Keys of which a scenario has one: an option that gives it replaces the other."""


@dataclass(frozen=True)
class Override:
    """A value from the command line: its key (``sweep.KEY`` for an axis), the value, and for messages the name of its
    option and the option with the value as it was typed."""

    key: str
    value: object
    where: str
    typed: str = ""


def assignment(text: str) -> Override:
    """Read ``table.key=value`` of the option --set; a value that is not TOML is text. Raises ScenarioError."""
    key, value = _split(text, "--set", "table.key=value")
    return Override(key, toml_or_text(value), f"--set {one_line(key)}", f"--set {shortened(text)}")


def axis(text: str) -> Override:
    """Read ``table.key=a,b,c`` of the option --sweep; values are read as those of --set. Raises ScenarioError."""
    key, values = _split(text, "--sweep", "table.key=value,value")
    where = f"--sweep {one_line(key)}"
    try:
        axis_of = [toml_or_text(part) for part in split_at_commas(values)]
    except ValueError as error:
        raise ScenarioError([f"{where}: {error}"]) from None
    return Override(f"sweep.{key}", axis_of, where, f"--sweep {shortened(text)}")


def _split(text: str, option: str, allowed: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise ScenarioError([f"{option}: {format_value(text)} has no equals sign; allowed: {allowed}"])
    return key.strip().replace('"', ""), value


def shortened(text: str) -> str:
    """Shorten typed text to what a message repeats."""
    return one_line(text if len(text) <= _MAX_TYPED else f"{text[:_MAX_TYPED]}…")


def split_at_commas(text: str) -> list[str]:
    """Split a text at its commas, except those in brackets and in quotation marks; raises ValueError for an empty
    element among several."""
    parts, depth, is_quoted = [""], 0, False
    for character in text[:MAX_BYTES]:
        if character == '"':
            is_quoted = not is_quoted
        elif not is_quoted:
            depth += (character in "[{") - (character in "]}")
        if character == "," and depth == 0 and not is_quoted:
            parts.append("")
        else:
            parts[-1] += character
    return elements(text, parts)


def toml_or_text(text: str) -> object:
    """Return the TOML value that a text is, or the text itself if it is not TOML."""
    text = text.strip()
    try:
        parsed = tomllib.loads(f"value = {text}") if len(text) <= MAX_BYTES else {}
    except (ValueError, RecursionError):
        return text
    return parsed["value"] if list(parsed) == ["value"] else text


def load_scenario(scenario: str, overrides: Sequence[Override] = (), *, at_prompt: bool = False) -> Scenario:
    """Load the scenario with this name or file; values of `overrides` replace its own (the last one wins).

    A key without effect is dropped, and the scenario's `notes` tell why; if an override makes keys of the file useless,
    such as those of another sampler, they are dropped without a note. With `at_prompt` every mode may be run, whatever
    run.modes lists.

    Raises ScenarioError with every mistake, one line each: ``location: what is wrong, what is allowed``, where the
    location is ``file: key`` or the option that the value came from.
    """
    path = _scenario_path(scenario)
    label = one_line(path.name if path.parent == FOLDER else scenario)
    try:
        text = read_text(path, most_bytes=MAX_BYTES)
    except TextFileError as error:
        raise ScenarioError([f"{label}: {error}"]) from None
    scenario_read = scenario_of(text, overrides, path=path, label=label, at_prompt=at_prompt)
    if not overrides or path.parent != FOLDER or any(override.key == "name" for override in overrides):
        return scenario_read
    data = [override for override in overrides if override.key == DATA]
    is_changed = not _is_paper(scenario_read) and _is_paper(scenario_of(text, data, path=path, label=label))
    return replace(scenario_read, name=OWN_NAME) if is_changed else scenario_read


def _is_paper(scenario: Scenario) -> bool:
    """Return whether a scenario reproduces the paper: all configurations have its values, and modes of its own."""
    unused = unused_keys(scenario)
    return all(
        {*config.run.modes} <= {*PAPER_ORDER}
        and has_paper_values({key: value for key, value in plain_values(config).items() if key not in unused})
        for config in scenario.configurations()
    )


def scenario_of(
    text: str,
    overrides: Sequence[Override] = (),
    *,
    path: Path = Path("scenario.toml"),
    label: str | None = None,
    is_stored: bool = False,
    pieces: Sequence[object] = (),
    at_prompt: bool = False,
) -> Scenario:
    """Return the scenario in a TOML file's text, as `load_scenario`; messages call the file `label` (default: `path`).

    Relative paths in the text are relative to the file's folder, those in options to the working directory. With
    `is_stored` the text was stored by a run, and no note tells of its keys without effect, because earlier versions
    stored them. `pieces` are the numbers of pieces that the run stored for its configurations.
    """
    label = label or one_line(str(path))
    try:
        document = tomllib.loads(text)
    except RecursionError:
        raise ScenarioError([f"{label}: is not valid TOML: tables or lists are nested too deeply"]) from None
    except ValueError as error:  # not only TOMLDecodeError, because a number may have too many digits
        hint = '; texts have quotes, as in "8 MB"' if str(error).startswith(("Invalid value", "Unclosed array")) else ""
        raise ScenarioError([f"{label}: is not valid TOML: {one_line(str(error))}{hint}"]) from None

    if isinstance(tables := document.get("program"), list):
        try:
            document = {**document, "program": of_tables(tables)}
        except ValueError as error:
            raise ScenarioError([f"{label}: program: {error}"]) from None

    def checked(options: Sequence[Override]) -> _Draft:
        draft = _without_unused(document, options, path, label, is_stored=is_stored, at_prompt=at_prompt)
        others = inconsistencies(draft.scenario, draft.unread, at_prompt=at_prompt)
        return replace(draft, mistakes=(*draft.mistakes, *others))

    forget_changed()
    if pieces and not (plain := _draft(document, (), path, label)).mistakes:
        plain.scenario.remember_pieces(pieces)
    draft = checked(overrides)
    remember_files(draft.scenario)
    if draft.mistakes:
        locations = _blamed_locations(draft, overrides, checked)
        lines = (f"{where}: {one_line(mistake.text)}" for where, mistake in zip(locations, draft.mistakes, strict=True))
        raise ScenarioError(dict.fromkeys(lines))
    return draft.scenario


@dataclass(frozen=True)
class _Draft:
    """A scenario made of a file and options, the given values by known key, and the mistakes so far. `unread` are the
    tables that have a wrong value: the scenario has defaults there."""

    scenario: Scenario
    given: Mapping[str, "_GivenValue"]
    mistakes: tuple[Mistake, ...]
    unread: Set[str]
    label: str

    def unused_keys(self, *, at_prompt: bool) -> dict[str, str]:
        """Return why given keys have no effect; at a prompt any mode and program may run later, so theirs have one."""
        scenario = self.scenario
        if at_prompt:
            program = replace(scenario.program, command=scenario.program.command or "")
            scenario = replace(scenario, run=replace(scenario.run, modes=tuple(scenario.modes)), program=program)
        found = unused_keys(scenario, self.unread, _tables_in(self.given))
        return {key: why for key, why in found.items() if _given_key(key, self.given) in _KNOWN}

    def place(self, key: str) -> str:
        """Return the location of a key, which is given: its option, or the file and the key."""
        given = _given_key(key, self.given)
        if given is None:
            return f"{self.label}: {one_line(key)}"
        part = key.removeprefix("sweep.").removeprefix(given.removeprefix("sweep."))
        where = self.given[given].where
        if where.startswith("--policy "):  # names its policy already, so without the policy's index
            part = f": {part.partition('].')[2]}"
        return where + one_line(part)

    def reads_from(self, folder: Path) -> bool:
        """Whether a given value names a pack that reads published data from this folder."""
        named = (
            text
            for key, one in self.given.items()
            if key.removeprefix("sweep.") in _OF_PACKS
            for text in _packs_in(one.value)
        )
        return any(Path(text.partition(":")[2]).is_relative_to(folder.absolute()) for text in named)

    def is_by_option(self, key: str) -> bool:
        """Return whether an option gave a key."""
        given = _given_key(key, self.given)
        return given is not None and self.given[given].by_option


def _without_unused(
    document: Mapping[str, object],
    options: Sequence[Override],
    path: Path,
    label: str,
    *,
    is_stored: bool,
    at_prompt: bool,
) -> _Draft:
    """Return the draft of a document and options without the keys that have no effect, with a note on each of them.

    Keys of the file that an option makes useless, by replacing the value that they belong to, are dropped without a
    note, and so are those of a stored file.
    """
    draft, without, notes = _draft(document, options, path, label), dict[str, str](), list[str]()
    while unused := draft.unused_keys(at_prompt=at_prompt):  # without some keys, others may be unused
        useless: Collection[str] = unused
        if options:
            useless = _draft(document, (), path, label, without=without).unused_keys(at_prompt=at_prompt)
        for key, why in unused.items():
            if draft.is_by_option(key) or (key in useless and not is_stored):
                notes.append(f"{draft.place(key)}: unused: {why}")
        without |= unused
        draft = _draft(document, options, path, label, without=without)
    for override in options:
        if override.key == DATA and not draft.reads_from(Path(str(override.value))):
            notes.append(f"{DATA}: unused: no {' or '.join(_OF_PACKS)} names a pack that reads published data from it")
    return replace(draft, scenario=replace(draft.scenario, notes=(*draft.scenario.notes, *notes)))


def _draft(
    document: Mapping[str, object], overrides: Sequence[Override], path: Path, label: str, without: Collection[str] = ()
) -> _Draft:
    """Return the scenario of a document and options, `without` some given keys, not yet checked as a whole."""
    given, mistakes = _given_values(document, path, label, overrides)
    given = {
        key: replace(one, value=_without_parts(key, one.value, without)) if key in _LISTS else one
        for key, one in given.items()
        if key.removeprefix("sweep.") not in without
    }
    values, axes, wrong = _read_values(given)
    if "run.modes" not in given and (policies := values.get("policy")):
        values["run.modes"] = (*MODES, *(one.name for one in policies))
    kinds = {f"{prefix}{key}" for key in ("job", "collective.kind") for prefix in ("", "sweep.")}
    if any(key.removeprefix("sweep.").startswith("training.") for key in given) and not kinds & {*given}:
        values["collective.kind"] = TRAINING
    unread = {mistake.key.removeprefix("sweep.").partition(".")[0] for mistake in wrong}
    notes = tuple(note for one in given.values() for note in _rounding_notes(one.where, one.value))
    scenario = replace(DEFAULTS.with_values(values), sweep=axes, notes=notes)
    return _Draft(scenario, given, (*mistakes, *wrong), unread, label)


def _tables_in(given: Mapping[str, "_GivenValue"]) -> Mapping[str, Sequence[Sequence[Mapping[str, object]]]]:
    """Return the given lists of tables by key: the one list, or those of an axis of the sweep."""
    lists = dict[str, list[Any]]()
    for key in _LISTS & {*given} & {*_KNOWN}:
        value: Any = given[key].value
        lists[key.removeprefix("sweep.")] = value if key.startswith("sweep.") else [value]
    return lists


def _without_parts(key: str, value: Any, without: Collection[str]) -> Any:
    """Return a given list of tables, or the lists of an axis, without the tables and keys that `without` names, such as
    "class[1]" and "job[2].start"."""
    name = key.removeprefix("sweep.")
    if name != key and isinstance(value, list):
        return [_without_parts(name, one, without) for one in value]
    if not any(one.startswith(f"{name}[") for one in without) or not isinstance(value, list):
        return value
    return [
        {part: kept for part, kept in table.items() if f"{name}[{number}].{part}" not in without}
        for number, table in enumerate(value, 1)
        if f"{name}[{number}]" not in without
    ]


def _blamed_locations(
    draft: _Draft, overrides: Sequence[Override], checked: Callable[[Sequence[Override]], _Draft]
) -> Iterator[str]:
    """Yield the location of each mistake.

    That is the option that gave the wrong value. If the value is from the file, it is every option without which the
    value would be allowed, and if there is no such option, the key in the file.
    """
    others = [[*overrides[:index], *overrides[index + 1 :]] for index in range(len(overrides))]
    mistakes_without: list[tuple[Mistake, ...]] | None = None
    for mistake in draft.mistakes:
        location = draft.place(mistake.key)
        if draft.is_by_option(mistake.key):
            yield location
            continue
        if mistakes_without is None:
            mistakes_without = [checked(options).mistakes for options in others]
        guilty = [
            override.typed or override.where
            for override, mistakes in zip(overrides, mistakes_without, strict=True)
            if mistake not in mistakes and override.key != DATA  # without it, packs find no data
        ]
        yield f"{', '.join(dict.fromkeys(guilty))}: {one_line(mistake.key)}" if guilty else location


def of_its_time(text: str) -> str:
    """Return the text of a stored scenario with the values of BEFORE for keys that did not exist when it was stored."""
    try:
        document = tomllib.loads(text)
    except ValueError:
        return text  # `scenario_of` reports what is wrong with it
    for key, value in BEFORE.items():
        table, _, name = key.partition(".")
        if key not in document.get("sweep", {}):
            document.setdefault(table, {}).setdefault(name, value)
    return tomli_w.dumps(document)


def resolved(scenario: Scenario) -> str:
    """Return the scenario as a TOML file's text with all keys that have an effect; loading it gives it again."""
    axes = {axis.key: axis.values for axis in scenario.sweep}
    unused = {*unused_keys(scenario)}
    if None not in axes.get("fabric.rails", (scenario.fabric.rails,)):
        unused |= {"fabric.leaves", "fabric.spines"}
    unused |= {first for first, second in _ALTERNATIVES if second in axes or scenario.value(second) not in (None, ())}
    document: dict[str, Any] = {}
    for key in KEYS.values():
        value = scenario.value(key.name)
        if key.name in axes or key.name in unused or value in (None, ()):
            continue
        table = document.setdefault(key.table, {}) if key.table else document
        table[key.name.rpartition(".")[2]] = key.kind.write(value)
    if axes:
        document["sweep"] = {key: [KEYS[key].kind.write(item) for item in values] for key, values in axes.items()}
    return toml_text(document)


def _scenario_path(scenario: str) -> Path:
    """Return the file of the scenario with this name or path; raises ScenarioError if a name is unknown."""
    names = scenario_names()
    if scenario in names:
        return FOLDER / f"{scenario}.toml"
    path, stem = Path(scenario), Path(scenario).stem
    if scenario.endswith(".toml") or "/" in scenario:
        if os.path.isdir(scenario):  # noqa: PTH112 - False for a name that no file can have, where Path.is_dir raises
            runs = f" (did you mean {path}/scenario.toml, or --resume {path}?)"
            hint = runs if (path / "scenario.toml").exists() else ""
            raise ScenarioError([f"{one_line(scenario)}: is a folder; allowed: a TOML file{hint}"])
        if stem in names and not os.path.exists(scenario):  # noqa: PTH110 - likewise
            why = f"there is no such file (did you mean {stem}, the scenario of this name?)"
            raise ScenarioError([f"{one_line(scenario)}: {why}"])
        return path
    what, hint = "unknown scenario", did_you_mean(scenario, names)
    if path.with_name(f"{path.name}.toml").is_file() if path.name else False:
        hint = f" (did you mean {path.name}.toml?)"
    elif path.is_dir():
        what = "a folder is not a scenario:"
    elif path.is_file():
        what = "a scenario's file ends in .toml:"
    allowed = f"a TOML file or one of {', '.join(names)}{hint or '; studies: --help'}"
    raise ScenarioError([f"{what} {format_value(scenario)}; allowed: {allowed}"])


@dataclass(frozen=True)
class _GivenValue:
    """A value as the user gave it; `where` names the location in messages."""

    value: object
    where: str
    by_option: bool = False


def _given_values(
    document: Mapping[str, object], path: Path, label: str, overrides: Sequence[Override]
) -> tuple[dict[str, _GivenValue], list[Mistake]]:
    """Return the values of the file and the options by key, and the mistakes in the keys themselves."""
    values = [*_flattened(document)]
    flat, times = dict(values), Counter(key for key, _ in values)
    mistakes = [Mistake(key, "is given twice; allowed: once") for key in flat if times[key] > 1]
    mistakes += [
        Mistake(key, "is given twice, here and in [sweep]; allowed: one of the two")
        for key in SWEPT
        if key in flat and f"sweep.{key}" in flat
    ]
    by_option = {override.key.removeprefix("sweep."): override.where for override in overrides}
    for first, second in _ALTERNATIVES:
        if sum(name in flat for key in (first, second) for name in (key, f"sweep.{key}")) > 1:
            mistakes.append(Mistake(second, f"is given together with {first}; allowed: one of the two"))
        if {first, second} <= {*by_option}:
            mistakes.append(Mistake(second, f"is given together with {by_option[first]}; allowed: one of the two"))
    stem = re.sub(r"[^A-Za-z0-9_.-]", "-", path.stem)[:64].lstrip("_.-")
    flat.setdefault("name", stem or DEFAULTS.name)
    folder = path.absolute().parent
    data = next((Path(str(override.value)) for override in overrides if override.key == DATA), None)
    overrides = [override for override in overrides if override.key != DATA]

    def located(key: str, value: object, folder: Path) -> object:
        if key.removeprefix("sweep.") in _OF_PACKS:
            value = _with_located_packs(value, data or folder)
        return _with_absolute_paths(key, value, folder)

    given = {key: _GivenValue(located(key, value, folder), f"{label}: {one_line(key)}") for key, value in flat.items()}
    for override in overrides:
        if isinstance(override.value, dict) and override.key == "policy":  # an additional policy
            others = given["policy"].value if "policy" in given else []
            more = [
                *(others if isinstance(others, list) else ()),
                _with_absolute_file(override.value, "function", Path.cwd()),
            ]
            given["policy"] = _GivenValue(more, override.where, by_option=True)
            if "run.modes" in given and isinstance(names := given["run.modes"].value, list):
                given["run.modes"] = replace(given["run.modes"], value=[*names, override.value.get("name")])
            continue
        # An axis of [sweep] displaces the single value of its key, and the reverse.
        key, swept = override.key, override.key.removeprefix("sweep.")
        for name in {swept}.union(*(keys for keys in _ALTERNATIVES if swept in keys)):
            given.pop(name, None)
            given.pop(f"sweep.{name}", None)
        given[key] = _GivenValue(located(key, override.value, Path.cwd()), override.where, by_option=True)
    mistakes = [
        Mistake(key, _unknown_key(key, one.value)) for key, one in given.items() if key not in _KNOWN
    ] + mistakes
    return given, mistakes


def _flattened(table: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield the values of a table by dotted key. A table is entered only if it can contain known keys, so that an
    unknown table is one mistake rather than one for each of its keys."""
    for name, value in table.items():
        key = prefix + name
        leads = key in _TABLES or any(known.startswith(f"{key}.") for known in _KNOWN)
        if isinstance(value, dict) and leads and key not in _KNOWN:
            yield from _flattened(value, f"{key}.")
        else:
            yield key, value


def _with_absolute_paths(key: str, value: object, folder: Path) -> object:
    """Return a value with the relative paths in it made absolute, from this folder."""
    name = key.removeprefix("sweep.")
    if name == "job" and isinstance(value, list):
        return [_with_absolute_files_of_job(one, key, folder) for one in value]
    if name == "program.role" and isinstance(value, list):
        return [_with_absolute_file(one, "input", folder) for one in value]
    if name == "policy" and isinstance(value, list):
        return [_with_absolute_file(one, "function", folder) for one in value]
    if name not in ("conditions.trace", "collective.schedule", "fabric.wan", "program.kernels"):
        return value
    if isinstance(value, list):
        return [_with_absolute_paths(name, item, folder) for item in value]
    is_path = isinstance(value, str) and value and (name != "fabric.wan" or value.endswith(GRAPHML))
    return str(Path(folder, str(value)).absolute()) if is_path else value


def _with_absolute_files_of_job(job: object, key: str, folder: Path) -> object:
    if not isinstance(job, dict):
        return _with_absolute_paths(key, job, folder)
    names_a_file = isinstance(rule := job.get("rule"), str) and ":" in rule
    for name in ("schedule", "trace", *("rule",) * names_a_file):
        job = _with_absolute_file(job, name, folder)
    return job


def _packs_in(value: object, depth: int = 4) -> Iterator[str]:
    """Yield the texts in a value that name a pack."""
    if packs.is_pack(value):
        yield str(value)
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for part in parts if depth else ():
        yield from _packs_in(part, depth - 1)


def _with_located_packs(value: object, folder: Path, depth: int = 4) -> object:
    """Return a value with the relative paths of packs in it made absolute, from this folder."""
    if isinstance(value, list) and depth:
        return [_with_located_packs(item, folder, depth - 1) for item in value]
    if isinstance(value, dict) and depth:
        return {key: _with_located_packs(item, folder, depth - 1) for key, item in value.items()}
    return packs.located(str(value), folder) if packs.is_pack(value) else value


def _with_absolute_file(table: object, key: str, folder: Path) -> object:
    """Return a table with the path under a key made absolute, from this folder."""
    file = table.get(key) if isinstance(table, dict) else None
    if isinstance(table, dict) and isinstance(file, str) and file:
        return {**table, key: str(Path(folder, file).absolute())}
    return table


def _unknown_key(key: str, value: object = None) -> str:
    """Describe the mistake of an unknown key: what is allowed in its table, and the most similar key of any table."""
    table, _, name = key.partition(".")
    inside = [known.partition(".")[2] for known in _KNOWN if known.startswith(f"{table}.")]
    if table not in _TABLES:
        tables = ", ".join(f"[{one}]" for one in _TABLES)
        lists = ", ".join(f"[[{one}]]" for one in _OF_TABLES)
        nearest = _nearest_table(key, value) or _nearest_key(key, "") or did_you_mean(table, (*_TABLES, *_OF_TABLES))
        return f"unknown table or key, allowed: name, {tables}, {lists}{nearest}"
    if not name:
        if value == [] or _are_tables(value):
            return f"is a list of tables; allowed: one table, [{table}]"
        return f"is a table and not a key; allowed: a key in it, {', '.join(f'{table}.{one}' for one in inside)}"
    if table == "sweep":
        fixed = [one for one in KEYS if one not in SWEPT]
        return f"cannot be swept; allowed: every key but {', '.join(fixed)}" if name in fixed else _unknown_key(name)
    return f"unknown key of [{table}], allowed: {', '.join(inside)}{_nearest_key(name, table)}"


def _nearest_table(name: str, value: object) -> str:
    """Return a hint at the table, or the list of tables, whose name is nearly that of a table of a file, which is no
    key; "" without any."""
    if not (isinstance(value, dict) or _are_tables(value)) or len(name) > _MAX_TYPED:
        return ""
    forms = {one: f"[{one}]" for one in _TABLES} | {one: f"[[{one}]]" for one in _OF_TABLES if one not in _TABLES}
    close = get_close_matches(name.casefold(), forms, n=1, cutoff=0.75)
    return f" (did you mean {forms[close[0]]}?)" if close else ""


def _are_tables(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, dict) for one in value)


def _nearest_key(name: str, table: str) -> str:
    """Return a hint at the key whose name in its table is most similar, of equals one of `table`; "" without any."""
    plain = name.rpartition(".")[2].replace("-", "_").casefold()
    by_name: dict[str, list[str]] = {}
    for known in KEYS:
        by_name.setdefault(known.partition(".")[2] or known, []).append(known)
    if len(plain) > _MAX_TYPED:
        return ""
    if plain in _ONLY_OPTIONS:
        return f" (did you mean the option --{plain}?)"
    of_table = [known for known, keys in by_name.items() if f"{table}.{known}" in keys]
    # a nearly equal name of the table, then an equal one of any, a similar one of the table, and a similar one of any
    close = get_close_matches(plain, of_table, n=1, cutoff=0.85)
    close = close or ([plain] if plain in by_name else get_close_matches(plain, of_table, n=1, cutoff=0.75))
    close = close or get_close_matches(plain, [*by_name], n=1, cutoff=0.6)
    if not close:
        return ""
    keys = by_name[close[0]]
    meant = close[0] if f"{table}.{close[0]}" in keys else " or ".join(keys)
    return f" (did you mean {meant}?)"


def _read_values(given: Mapping[str, _GivenValue]) -> tuple[dict[str, Any], tuple[Axis, ...], list[Mistake]]:
    """Return the valid values and axes by key, and a mistake for every invalid one."""
    values: dict[str, Any] = {}
    axes, mistakes = list[Axis](), list[Mistake]()
    for key in _KNOWN:
        if key not in given:
            continue
        value, swept = given[key].value, key.removeprefix("sweep.")
        try:
            if key == swept:
                values[key] = KEYS[key].kind.read(value)
            elif not isinstance(value, list) or not 1 <= len(value) <= MAX_AXIS_VALUES:
                raise ValueError(
                    f"{format_value(value)} is not an axis; allowed: a list of 1 to {MAX_AXIS_VALUES} values"
                )
            else:
                axes.append(Axis(swept, unique(map(KEYS[swept].kind.read, value), value)))
        except SpecError as error:
            mistakes += error.mistakes
        except ValueError as error:
            mistakes.append(Mistake(key, str(error)))
    return values, tuple(axes), mistakes


def _rounding_notes(where: str, value: object, depth: int = 4) -> Iterator[str]:
    """Yield a sentence for each rate and size in a value that is rounded, as "1.5 bit/s" is; values of keys are tables
    and lists at most `depth` deep."""
    if isinstance(value, str):
        for rounded in filter(None, (rounding(value, kind) for kind in (RATE, SIZE))):
            yield f"{where}: {format_value(value)} is rounded {rounded}"
    elif isinstance(value, list | dict) and depth:
        for item in value.values() if isinstance(value, dict) else value:
            yield from _rounding_notes(where, item, depth - 1)


def _given_key(key: str, given: Mapping[str, _GivenValue]) -> str | None:
    """Return the given key that this key is or is a part of (``fabric.wan.links``, ``job[1].start``), or None."""
    for whole in (key, key.rpartition(".")[0], key.partition("[")[0]):
        for name in (whole, f"sweep.{whole}"):
            if name in given:
                return name
    return None
