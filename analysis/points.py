"""The points of a stored run, as figures and the report need them: who was measured, what was varied, in what words.

A point is one engine, setting and mode. Knows the columns of a run's tables and the values of its settings; drawing is
left to others.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.metrics import block_length
from analysis.results import Run
from analysis.style import MODE_STYLES
from topologies.units import format_delay, format_rate_range, format_size

Floats = npt.NDArray[np.float64]
Setting = Mapping[str, Any]

ENGINES = ("model", "emulation")

_LABELS = {
    "fabric.gpus": ("GPUs", "gpus"),
    "collective.chunk": ("chunk size", "chunk_bytes"),
    "conditions.wan_delay": ("delay of a WAN link", "wan_delay_s"),
}
_KINDS = {"allgather": "AllGather"}


class FigureError(ValueError):
    """A run of which this cannot be drawn; one sentence that says why."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Point:
    """The rows of one engine, setting (its number) and mode, in the order of their collectives."""

    engine: str
    setting: int
    mode: str
    rows: pd.DataFrame

    @cached_property
    def completion_s(self) -> Floats:
        """What each collective took, [K] seconds."""
        return np.asarray(self.rows["completion_s"], dtype=np.float64)

    @cached_property
    def predicted_s(self) -> Floats:
        """What the model says each takes, [K] seconds."""
        return np.asarray(self.rows["predicted_s"], dtype=np.float64)


Points = Mapping[tuple[str, int, str], Point]


_NEEDED = ("fabric.gpus", "collective.chunk", "collective.reembed_every", "conditions.sampler", "run.seed")
_TABLES = {
    "gpus": ("rank", "name", "site"),
    "border_routers": ("name", "site"),
    "transit": (),
    "links": ("index", "src", "dst", "kind"),
    "paths": ("index", "links"),
}


def checked(run: Run) -> Run:
    """The run; raises FigureError where its settings do not say what figures need to know."""
    for number, setting in enumerate(run.settings):
        lacking = [key for key in _NEEDED if key not in setting["values"]]
        for name, keys in _TABLES.items():
            rows = setting["fabric"].get(name)
            if not isinstance(rows, list) or any(key not in row for row in rows for key in keys):
                lacking.append(f"fabric {name}")
        if lacking or setting["setting"] != number:
            what = f"lacks {', '.join(lacking)}" if lacking else "is not in its place"
            raise FigureError(f"{run.path} is damaged: setting {number} of its settings.json {what}")
    return run


def points_of(run: Run) -> dict[tuple[str, int, str], Point]:
    """The points of a run by engine, setting and mode: the model's first, settings and modes in their order.

    Raises FigureError where the run holds no collective, or one of a mode or an engine that there is not.
    """
    if run.collectives.empty:
        raise FigureError(f"{run.path} holds no collective yet: there is nothing to draw")
    found: dict[tuple[str, int, str], Point] = {}
    grouped = run.collectives.groupby(["engine", "setting", "mode"], sort=False, observed=True)
    for (engine, setting, mode), rows in grouped:
        if mode not in MODE_STYLES:
            raise FigureError(f"the mode {mode} has no row in MODE_STYLES: allowed is {', '.join(MODE_STYLES)}")
        if engine not in ENGINES or not 0 <= setting < len(run.settings):
            raise FigureError(f"{run.path} holds a point ({engine}, setting {setting}, {mode}) that its settings lack")
        sorted_already = rows["collective"].is_monotonic_increasing
        ordered = rows if sorted_already else rows.sort_values("collective", kind="stable")
        found[engine, setting, mode] = Point(engine=engine, setting=int(setting), mode=mode, rows=ordered)
    order = list(MODE_STYLES)
    return dict(
        sorted(found.items(), key=lambda item: (ENGINES.index(item[0][0]), item[0][1], order.index(item[0][2])))
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Group:
    """The settings that one figure compares: all alike but for the value of `across`, in the order of the sweep.

    `name` is what tells it from other groups in a file's name, "" where there is one group.
    """

    name: str
    across: str
    settings: tuple[Setting, ...]

    @property
    def x_label(self) -> str:
        """What was varied, in words."""
        return _LABELS.get(self.across, (self.across, ""))[0]

    @property
    def x_column(self) -> str:
        """What was varied, as a column's name with its unit."""
        return _LABELS.get(self.across, ("", self.across))[1]

    @property
    def ticks(self) -> tuple[str, ...]:
        """The values of what was varied, in words."""
        return tuple(words(self.across, value_of(setting, self.across)) for setting in self.settings)

    @property
    def values(self) -> tuple[Any, ...]:
        """The values of what was varied, as numbers where they are one."""
        values = (value_of(setting, self.across) for setting in self.settings)
        return tuple(plain(self.across, value) for value in values)

    @property
    def title(self) -> str:
        """What was not varied, in words."""
        first = self.settings[0]
        keys = [*_LABELS, *(key for key in first["swept"] if key not in _LABELS)]
        return ", ".join(_titled(key, value_of(first, key)) for key in keys if key != self.across)


def groups_of(settings: Sequence[Setting]) -> list[Group]:
    """The settings in groups: across each goes the longest axis of the sweep, seeds last."""
    axes = {key: len({repr(value_of(s, key)) for s in settings}) for key in settings[0]["swept"]}
    across = max(axes, key=lambda key: (key != "run.seed", axes[key]), default="collective.chunk")
    others = [key for key in axes if key != across]
    groups: dict[tuple[str, ...], list[Setting]] = {}
    for setting in settings:
        groups.setdefault(tuple(words(key, value_of(setting, key)) for key in others), []).append(setting)
    return [
        Group(name="-".join(map(_file_word, which)), across=across, settings=tuple(found))
        for which, found in groups.items()
    ]


def value_of(setting: Setting, key: str) -> Any:
    """The value of a scenario's key at a setting."""
    return setting["values"][key] if key in setting["values"] else setting["swept"][key]


def plain(key: str, value: Any) -> Any:
    """A value as a table holds it: one number where it is one, words otherwise."""
    if key == "fabric.gpus" and isinstance(value, list | tuple):
        return sum(value)
    return value if isinstance(value, int | float | str) else words(key, value)


def words(key: str, value: Any) -> str:
    """A value in words: "8", "3+5", "64 MB", "10 µs"."""
    if key == "fabric.gpus" and isinstance(value, list | tuple):
        return str(sum(value)) if len(set(value)) == 1 else "+".join(map(str, value))
    if key == "collective.chunk":
        return format_size(value)
    if key.endswith("_delay"):
        return format_delay(value).replace("us", "µs")
    if key.endswith("_rate") and isinstance(value, list | tuple):
        return format_rate_range((value[0], value[1]))
    if isinstance(value, Mapping):
        return str(value.get("preset") or "own")
    return "+".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def label_of(setting: Setting) -> str:
    """A setting in words: "8 GPUs, 64 MB, 10 µs"."""
    return re.sub(r"\bus\b", "µs", str(setting["label"]))


def collective_name(setting: Setting) -> str:
    """The collective as it is written: "AllGather"."""
    kind = str(setting["values"].get("collective.kind", "allgather"))
    return _KINDS.get(kind, kind)


def block_of(setting: Setting, count: int) -> int:
    """How many collectives in a row of this setting are resampled together for intervals, of that many in all."""
    values = setting["values"]
    return block_length(
        reembed_every=values["collective.reembed_every"],
        sampler=values["conditions.sampler"],
        mean_stay=values["conditions.mean_stay"],
        collectives=count,
    )


def _titled(key: str, value: Any) -> str:
    text = words(key, value)
    known = {"fabric.gpus": f"{text} GPUs", "collective.chunk": f"chunks of {text}"}
    return known.get(key, f"WAN links of {text}" if key == "conditions.wan_delay" else f"{key} {text}")


def _file_word(word: str) -> str:
    return re.sub(r"[^A-Za-z0-9.+_]", "", word.replace("µ", "u")).lstrip(".") or "other"
