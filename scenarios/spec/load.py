"""Scenarios from files and options: every mistake found at once, each at the place where the user made it.

Knows where values come from and what they mean together; the form of files is in `document`, single keys in `keys`.
"""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scenarios.spec import checks, document
from scenarios.spec.document import Given, ScenarioError
from scenarios.spec.faults import FaultError
from scenarios.spec.keys import KEYS, SWEPT, Wrong, read_axis
from scenarios.spec.scenario import Scenario, assembled, values_of
from topologies.conditions.sampler import SAMPLERS
from topologies.errors import Mistake

_ASSIGNMENT = re.compile(r"([^=]*)=(.*)", re.DOTALL)
_KNOWN = (*KEYS, *(f"sweep.{key}" for key in SWEPT))


@dataclass(frozen=True)
class Override:
    """A value from the command line: its key (``sweep.KEY`` for an axis), and the option, as a message names it."""

    key: str
    value: object
    where: str


def assignment(text: str) -> Override:
    """Read ``table.key=value`` of the option --set; a value that is no TOML is taken as text. Raises ScenarioError."""
    match = _ASSIGNMENT.fullmatch(text)
    if match is None:
        raise ScenarioError([f"--set: {document.shown(text)} is no assignment: allowed is table.key=value"])
    key = match[1].strip().replace('"', "")
    return Override(key, _toml_or_text(match[2].strip()), f"--set {document.one_line(key)}")


def axis(text: str) -> Override:
    """Read ``table.key=a,b,c`` of the option --sweep; values are as those of --set. Raises ScenarioError."""
    match = _ASSIGNMENT.fullmatch(text)
    if match is None:
        raise ScenarioError([f"--sweep: {document.shown(text)} is no sweep: allowed is table.key=value,value"])
    key = match[1].strip().replace('"', "")
    values = [_toml_or_text(part.strip()) for part in _apart(match[2])]
    return Override(f"sweep.{key}", values, f"--sweep {document.one_line(key)}")


def _apart(text: str) -> list[str]:
    """The parts of a text between its commas, but for those in brackets and in quotation marks."""
    parts, depth, quoted = [""], 0, False
    for character in text[: document.MAX_BYTES]:
        quoted ^= character == '"'
        depth += (character in "[{") - (character in "]}") if not quoted else 0
        if character == "," and depth == 0 and not quoted:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def _toml_or_text(text: str) -> object:
    try:
        parsed = tomllib.loads(f"value = {text}") if len(text) <= document.MAX_BYTES else {}
    except (ValueError, RecursionError):
        return text
    return parsed["value"] if list(parsed) == ["value"] else text


def load_scenario(scenario: str, overrides: Sequence[Override] = ()) -> Scenario:
    """The scenario of this name or file, with the values of `overrides` in place of its own (the last one wins).

    Raises ScenarioError with every mistake there is, one line each: ``place: what is wrong, what is allowed``, the
    place being ``file: key`` or the option that the value came from.
    """
    path = document.find(scenario)
    label = document.one_line(path.name if path.parent == document.FOLDER else scenario)
    return _loaded(document.read(path), path, label, overrides)


def scenario_of(text: str, overrides: Sequence[Override] = (), *, path: Path = Path("scenario.toml")) -> Scenario:
    """The scenario of the text of a TOML file, as `load_scenario`; `path` is where it is, or might be."""
    label = document.one_line(str(path))
    return _loaded(document.parsed(text, label), path, label, overrides)


def _loaded(found: Mapping[str, object], path: Path, label: str, overrides: Sequence[Override]) -> Scenario:
    given, mistakes = _given(found, path, label, overrides)
    values, wrong = _read(given)
    mistakes += [*wrong, *checks.together(values, given)]
    lines = [f"{_place(mistake.key, given, label)}: {document.one_line(mistake.text)}" for mistake in mistakes]
    if lines:
        raise ScenarioError(dict.fromkeys(lines))
    return assembled(values)


def _given(
    found: Mapping[str, object], path: Path, label: str, overrides: Sequence[Override]
) -> tuple[dict[str, Given], list[Mistake]]:
    """What the file and the options give, by key, and what is wrong with the keys themselves."""
    flat, mistakes = document.flatten(found, _KNOWN)
    given = {key: Given(value, f"{label}: {key}", path.absolute().parent) for key, value in flat.items()}
    given.setdefault("name", Given(_name_of(path), f"{label}: name", path.parent))
    mistakes += [
        Mistake(key, "is given twice, here and in [sweep]: allowed is one of the two")
        for key in SWEPT
        if key in given and f"sweep.{key}" in given
    ]
    for override in overrides:
        if override.key == "conditions.sampler":
            # Parameters that the file has for its own sampler go with it.
            given = {key: value for key, value in given.items() if _heeded(key, override.value)}
    for override in overrides:
        # An axis of [sweep] displaces the single value of its key, and the reverse.
        twin = override.key.removeprefix("sweep.") if override.key.startswith("sweep.") else f"sweep.{override.key}"
        given.pop(twin, None)
        given[override.key] = Given(override.value, override.where, Path.cwd())
    strangers = [override.key for override in overrides if override.key not in _KNOWN]
    return given, mistakes + [Mistake(key, document.unknown(key, _KNOWN)) for key in strangers]


def _heeded(key: str, sampler: object) -> bool:
    return key not in KEYS or sampler not in SAMPLERS or sampler in KEYS[key].samplers


def _name_of(path: Path) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]", "-", path.stem)[:64].lstrip("_.-") or "scenario"


def _place(key: str, given: Mapping[str, Given], label: str) -> str:
    """Where the user gave the value at fault: of a part of a value (``fabric.wan.links``) the place of the whole."""
    for whole in (key, f"sweep.{key}", key.rpartition(".")[0], key.partition("[")[0]):
        if whole in given:
            return given[whole].where + (key.removeprefix(whole) if whole and key.startswith(whole) else "")
    return f"{label}: {key}"


def _read(given: Mapping[str, Given]) -> tuple[dict[str, Any], list[Mistake]]:
    """The plain values of every key that is right, defaults included, and a mistake for every one that is not."""
    values: dict[str, Any] = {}
    mistakes = []
    for key in _KNOWN:
        swept = key.removeprefix("sweep.")
        try:
            if key not in given:
                if key in KEYS:
                    default = KEYS[key].default
                    values[key] = KEYS[key].read(Given(default, key, Path())) if default is not None else None
            else:
                values[key] = KEYS[key].read(given[key]) if key in KEYS else read_axis(swept, given[key])
        except Wrong as wrong:
            mistakes.append(Mistake(key, str(wrong)))
        except FaultError as error:
            mistakes += error.mistakes
    return values, mistakes


def resolved(scenario: Scenario) -> str:
    """The scenario as the text of a TOML file with every key it heeds; loading that gives the same scenario."""
    values = values_of(scenario)
    samplers = set(values.get("sweep.conditions.sampler", (values["conditions.sampler"],)))
    document_values: dict[str, object] = {}
    for key, value in values.items():
        swept = key.removeprefix("sweep.")
        if key != swept:
            document_values[key] = [KEYS[swept].write(item) for item in value]
        elif f"sweep.{key}" not in values and samplers & {*KEYS[key].samplers} and (key != "fault" or value):
            document_values[key] = KEYS[key].write(value)
    return document.written(document_values)
