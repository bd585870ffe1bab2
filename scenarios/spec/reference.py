"""Prints the reference of every scenario key in Markdown: ``python -m scenarios.spec.reference``."""

import sys

from analysis.statistics.unmodelled_keys import INSTEAD
from scenarios.policies import policy
from scenarios.spec import classes, exclusions, faults, jobs, roles
from scenarios.spec.keys import CHOSEN, KEYS, MAX_AXIS_VALUES, MAX_CONFIGURATIONS, SWEPT, Key
from scenarios.spec.scenario import DEFAULTS
from topologies.conditions.sampler import SAMPLERS
from topologies.errors import list_all


def reference() -> str:
    """Return tables of all keys: meaning, unit, allowed values and default; then those of [[job]] to [[fault]]; then
    what excludes each other."""
    rows = [_row(key) for key in KEYS.values()]
    of_roles, of_faults, of_classes, of_policies = (
        [f"| `{name}` | {kind.allowed} |" for name, kind in kinds.items()]
        for kinds in (roles.KEYS, faults.KEYS, classes.KINDS, policy.KINDS)
    )
    of_jobs = [f"| `{name}` | {key.kind.allowed} |" for name, key in jobs.KEYS.items()]
    fixed = ", ".join(f"`{key}`" for key in KEYS if key not in SWEPT)
    return "\n".join(
        [
            "| key | meaning | unit | allowed | default |",
            "| --- | --- | --- | --- | --- |",
            *rows,
            "",
            f"`[sweep]` takes every key but {fixed}: a list of up to {MAX_AXIS_VALUES} values, as in "
            f'`"collective.chunk" = ["8 MB", "64 MB"]`; all axes span up to {MAX_CONFIGURATIONS:,} configurations.',
            "",
            "A `[[program]]` has these keys, of which all but `command` may be left out "
            "([several commands](program.md#several-commands)), and keys of `[program]` for all of them:",
            "",
            "| key | allowed |",
            "| --- | --- |",
            *of_roles,
            "",
            "A `[[job]]` has these keys; [background](jobs.md#several-jobs-at-once), "
            "[requests](jobs.md#requests-to-a-language-model) and [transfers](jobs.md#transfers) need some:",
            "",
            "| key | allowed |",
            "| --- | --- |",
            *of_jobs,
            "",
            "A `[[class]]` has these keys; `share` and `ceiling` may be left out "
            "([classes](jobs.md#classes-of-traffic)):",
            "",
            "| key | allowed |",
            "| --- | --- |",
            *of_classes,
            "",
            "A `[[policy]]` has these keys, of which all but `name` may be left out "
            "([policies](policies.md#policies)):",
            "",
            "| key | allowed |",
            "| --- | --- |",
            *of_policies,
            "",
            "A `[[fault]]` has these keys; without `for` it stays until the end (what was killed is restarted):",
            "",
            "| key | allowed |",
            "| --- | --- |",
            *of_faults,
            "",
            "These exclude each other in one configuration:",
            "",
            "| one | other | why |",
            "| --- | --- | --- |",
            *(f"| {one} | {other} | {why} |" for one, other, why in exclusions.rows()),
            "",
        ]
    )


def _row(key: Key) -> str:
    only = "" if key.samplers == SAMPLERS else f" Only with {list_all([f'`{name}`' for name in key.samplers])}."
    only += " The timing model does not include it." * (key.name in INSTEAD)
    value = DEFAULTS.value(key.name)
    tables = dict.fromkeys(("program.role", "fault", "job", "class", "policy", "conditions.links"), "none")
    words = {"name": "the file's name", "collective.pieces": f'`"{CHOSEN}"`'}
    written = (words | tables).get(key.name, "none" if value is None else "")
    default = written or f"`{_toml(key.kind.write(value))}`"
    return f"| `{key.name}` | {key.meaning}{only} | {key.kind.unit} | {key.kind.allowed} | {default} |"


def _toml(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, str):
        return f'"{value}"'
    return str(value).lower() if isinstance(value, bool) else str(value)


if __name__ == "__main__":
    sys.stdout.write(reference())
