"""Scenario files as documents: finding one, reading its TOML into flat dotted keys, and writing TOML again.

Knows the form of a scenario file and nothing of what its keys mean.
"""

import difflib
import json
import stat
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from topologies.errors import Mistake

FOLDER = Path(__file__).resolve().parent.parent
"""Where the scenarios that have names live."""

TABLES = ("fabric", "conditions", "collective", "run", "transport", "sweep")
MAX_BYTES = 64 * 1024
"""Largest scenario file read; a scenario is a page of text."""

_LINE = 500  # characters of a message's part, at most
_SHOWN = 60  # characters of a value that a message repeats


class ScenarioError(ValueError):
    """A scenario that cannot be run; `mistakes` holds every mistake found, each one line."""

    def __init__(self, mistakes: Iterable[str]) -> None:
        self.mistakes = tuple(mistakes)
        super().__init__("\n".join(self.mistakes))


@dataclass(frozen=True)
class Given:
    """A value as the user gave it: where, as a message names the place, and the folder its paths are relative to."""

    value: object
    where: str
    folder: Path


def scenario_names() -> tuple[str, ...]:
    """The names of the scenarios that come with the product, sorted."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))


def find(scenario: str) -> Path:
    """The file meant by `scenario`: a name in scenarios/, or the path of a TOML file (with a slash or ``.toml``).

    Raises ScenarioError where there is no such file.
    """
    if scenario in scenario_names():
        return FOLDER / f"{scenario}.toml"
    if scenario.endswith(".toml") or "/" in scenario:
        return Path(scenario)
    known = ", ".join(scenario_names())
    hint = did_you_mean(scenario, scenario_names())
    raise ScenarioError([f"{shown(scenario)} is no scenario: allowed is a TOML file or one of {known}{hint}"])


def read(path: Path) -> dict[str, object]:
    """The TOML document at `path`; raises ScenarioError where it is no regular, short, UTF-8 file of valid TOML."""
    label = one_line(str(path))
    try:
        return parsed(_content(path).decode(), label)
    except OSError as error:
        raise ScenarioError([f"{label}: cannot be read: {error.strerror or error}"]) from None
    except UnicodeDecodeError as error:
        raise ScenarioError([f"{label}: is no text in UTF-8: byte {error.start} cannot be decoded"]) from None
    except ScenarioError:
        raise
    except ValueError as error:
        raise ScenarioError([f"{label}: {error}"]) from None


def parsed(text: str, label: str) -> dict[str, object]:
    """The TOML document of this text, which messages call `label`; raises ScenarioError where it is no valid TOML."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ScenarioError([f"{label}: is no valid TOML: tables or lists are nested too deeply"]) from None
    except ValueError as error:  # also numbers of thousands of digits, which are no TOMLDecodeError
        raise ScenarioError([f"{label}: is no valid TOML: {one_line(str(error))}"]) from None


def _content(path: Path) -> bytes:
    # A device or a pipe could block or never end, so the kind of file is looked at before it is opened.
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError("is no regular file")
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ValueError(f"is too large: a scenario file has at most {MAX_BYTES:,} bytes")
    return content


def flatten(document: Mapping[str, object], known: Iterable[str]) -> tuple[dict[str, object], list[Mistake]]:
    """The values of `document` by dotted key (``collective.chunk``, ``sweep.collective.chunk``), and what is unknown.

    `known` lists the dotted keys there are; a table that is itself the value of a known key stays whole.
    """
    keys = tuple(known)
    flat: dict[str, object] = {}
    mistakes: list[Mistake] = []
    for key, value in _leaves(document, keys):
        if key in keys:
            flat[key] = value
        else:
            mistakes.append(Mistake(one_line(key), unknown(key, keys)))
    return flat, mistakes


def _leaves(document: Mapping[str, object], keys: tuple[str, ...]) -> Iterator[tuple[str, object]]:
    # A stack of its own, as a table may be nested deeper than calls may be. Only what could still lead to a known
    # key is opened, so that an unknown table is one mistake and not one for each of its keys.
    stack = list(document.items())[::-1]
    while stack:
        key, value = stack.pop()
        prefix = f"{key}."
        if key not in keys and isinstance(value, dict) and (any(k.startswith(prefix) for k in keys) or key in TABLES):
            stack.extend((prefix + name, inner) for name, inner in reversed(value.items()))
        else:
            yield key, value


def unknown(key: str, known: Iterable[str]) -> str:
    """What to say of a key that is not `known`: what is allowed in its table, and the nearest key by spelling."""
    keys = tuple(known)
    table, _, name = key.partition(".")
    if key in TABLES:
        inside = ", ".join(other for other in keys if other.startswith(f"{table}."))
        return f"is a table and no key: allowed is a key in it, {inside}"
    if table == "sweep" and name in keys:
        fixed = [other for other in keys if not other.startswith("sweep.") and f"sweep.{other}" not in keys]
        return f"cannot be swept: allowed is every key but {', '.join(fixed)}"
    if not name or table not in TABLES:
        kind = "key" if table in TABLES else "table"
        allowed = ("name", *(f"[{table}]" for table in TABLES), "[[fault]]")
        nearest = did_you_mean(table, (*TABLES, "fault")) or did_you_mean(key, keys)
        return f"is no {kind} of a scenario, allowed: {', '.join(allowed)}{nearest}"
    names = [other.removeprefix(f"{table}.") for other in keys if other.startswith(f"{table}.")]
    told = _by_table(names) if table == "sweep" else names
    return f"is no key of [{table}], allowed: {', '.join(told)}{did_you_mean(name, names) or did_you_mean(key, keys)}"


def _by_table(names: Iterable[str]) -> list[str]:
    """Dotted keys in few words: those of a table together, if it has several."""
    tables: dict[str, list[str]] = {}
    for name in names:
        tables.setdefault(name.partition(".")[0], []).append(name)
    return [inside[0] if len(inside) == 1 else f"the keys of [{table}]" for table, inside in tables.items()]


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`` (did you mean …?)`` with the known word nearest by spelling, or nothing where none is near."""
    if len(word) > _SHOWN:
        return ""  # a distance to a long text costs time and names nothing
    nearest = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {nearest[0]}?)" if nearest else ""


def shown(value: object) -> str:
    """A value as a message can repeat it: TOML's spelling, on one line, cut where it is long."""
    if isinstance(value, str):
        return cut(json.dumps(value[: _SHOWN + 1], ensure_ascii=not value.isprintable()))
    if isinstance(value, list):
        return cut(f"[{', '.join(shown(item) for item in value[:8])}{', …' if len(value) > 8 else ''}]")
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 128:
        return f"a number of {value.bit_length()} bits"  # Python refuses to write some of these out
    return cut(str(value).lower() if isinstance(value, bool | float) else str(value))


def one_line(text: str) -> str:
    """Text of the user's as a message can hold it: printable, on one line, cut where it is very long."""
    text = text[:_LINE] + "…" * (len(text) > _LINE)
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


def cut(text: str) -> str:
    """The text up to its first sixty characters."""
    return text if len(text) <= _SHOWN + 2 else f"{text[:_SHOWN]}…"


def written(document: Mapping[str, object]) -> str:
    """TOML text of flat dotted keys (as `flatten` gives them), grouped in tables in the order of TABLES."""
    lines = [f"{key} = {_toml(value)}" for key, value in document.items() if "." not in key]
    for table in TABLES:
        prefix = f"{table}."
        keys = {key.removeprefix(prefix): value for key, value in document.items() if key.startswith(prefix)}
        if keys:
            lines += ["", f"[{table}]"]
            lines += [f"{_toml_key(key)} = {_toml(value)}" for key, value in keys.items()]
    return "\n".join(lines).lstrip("\n") + "\n"


def _toml_key(key: str) -> str:
    return _toml(key) if "." in key else key


def _toml(value: object) -> str:
    if isinstance(value, str):
        # A JSON string is a TOML string, but for DEL, which TOML wants escaped.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{', '.join(_toml(item) for item in value)}]"
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{_toml_key(key)} = {_toml(item)}' for key, item in value.items())} }}"
    return repr(value)
