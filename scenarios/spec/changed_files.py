"""Forgets what was computed from files that have changed since: a notebook runs many scenarios in one process.

Workloads, conditions, worlds and policies are remembered by the values of a scenario, in which a file is only a path.
A schedule, trace, policy or traffic matrix that was edited between two runs would otherwise go on as it was before, and
nobody is told.
"""

import sys
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from hosts.collectives.chakra import files_of
from scenarios.policies.user_policy import split_reference
from scenarios.spec.scenario import Scenario
from topologies.conditions.background_load import LoadSpec
from topologies.packs import table as packs
from topologies.text_files import stamp_of

_PACKAGES = ("analysis", "controller", "hosts", "scenarios", "topologies")
_REMEMBERING = type(lru_cache(lambda: None))

_Stamp = tuple[object, ...]
_known = dict[Path | str, _Stamp]()
"""The stamps of files by path, and of the data of packs by the text that names them."""


def remember_files(scenario: Scenario) -> None:
    """Note how the files of a scenario are now."""
    for path in _paths(scenario):
        _known.setdefault(path, _stamp(path))


def forget_changed() -> None:
    """Empty all caches of this process if a file is not as it was when it was noted."""
    found = {path: _stamp(path) for path in _known}
    if found == _known:
        return
    _known.update(found)
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in _PACKAGES:
            for value in list(vars(module).values()):
                if isinstance(value, _REMEMBERING):
                    value.cache_clear()


def _paths(scenario: Scenario) -> Iterable[Path | str]:
    of_jobs = [file for job in scenario.jobs for file in job.files]
    named = [scenario.conditions.trace, scenario.collective.schedule, *of_jobs]
    swept = [value for axis in scenario.sweep for value in axis.values if isinstance(value, Path)]
    own = [split_reference(one.function)[0] for one in scenario.policies if one.function is not None]
    return [path for path in (*named, *swept, *own, *data_of(scenario)) if path is not None]


def data_of(scenario: Scenario) -> list[str]:
    """Return the texts that name data of packs which the scenario's configurations read again: not those of its WAN."""
    swept = [value for axis in scenario.sweep for value in axis.values]
    loads = [one for one in (scenario.conditions.load, *swept) if isinstance(one, LoadSpec)]
    named = [*(one.matrices for one in loads), scenario.conditions.moves]
    named += [value for axis in scenario.sweep if axis.key == "conditions.moves" for value in axis.values]
    return [text for text in dict.fromkeys(map(str, named)) if packs.is_pack(text)]


def _stamp(path: Path | str) -> _Stamp:
    """Return the stamps of a file or, if its name has a * for the rank, of all of them; or of the files of a pack."""
    files = packs.files_of(path) if isinstance(path, str) else files_of(path)
    return (*files, *map(stamp_of, files))
