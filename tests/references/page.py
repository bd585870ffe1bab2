"""The page of references (docs/references.md): what other people's tests say of this testbed, a section a suite."""

import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
NAMES_SHOWN = 12  # of the cases with one reason

HEAD = """# References: other people's tests

`.venv/bin/python -m pytest -n 2 --dist loadgroup -m references --references=DIR` runs suites that others have written,
two at a time, and writes this page. A run of some suites replaces their sections. What a package index has is installed
in a folder of the test's own. The rest is read from DIR; a suite that it lacks is skipped, and the test says what to
put there.
"""


class Outcome(NamedTuple):
    """How a case of a suite ended; `why` is the reason if it did not pass."""

    kind: str
    why: str = ""


class Suite(NamedTuple):
    """A suite of others: its name, its version, where it comes from, and in a sentence or two what passes."""

    name: str
    version: str
    source: str
    what: str


def section(suite: Suite, outcomes: Mapping[str, Outcome]) -> str:
    """Return a suite's section; raises ValueError for a case that did not pass without a reason."""
    unexplained = [name for name, one in outcomes.items() if one.kind != PASSED and not one.why]
    if unexplained:
        raise ValueError(f"{suite.name}: {unexplained[0]} did not pass, and no reason is given")
    count = Counter(one.kind for one in outcomes.values())
    lines = [
        f"## {suite.name}",
        "",
        *_wrapped(f"{suite.what} From {suite.source}, version {suite.version}."),
        "",
        "| run | passed | failed | skipped |",
        "| --- | --- | --- | --- |",
        f"| {len(outcomes)} | {count[PASSED]} | {count[FAILED]} | {count[SKIPPED]} |",
        "",
    ]
    for kind in (FAILED, SKIPPED):
        reasons = dict[str, list[str]]()
        for name, one in sorted(outcomes.items()):
            if one.kind == kind:
                reasons.setdefault(one.why, []).append(name)
        for why, names in reasons.items():
            lines += _wrapped(f"- {kind.capitalize()}: {_names(names)}: {why}.", indent="  ")
        lines += [""] if reasons else []
    return "\n".join(lines)


def with_section(page: str, new: str) -> str:
    """Return a page with a section in the place of the one with the same heading; sections stand by name."""
    sections = {_heading(one): one.rstrip("\n") for one in (*_sections(page), new)}
    return "\n\n".join([HEAD.rstrip("\n"), *(sections[name] for name in sorted(sections, key=str.lower))]) + "\n"


def _sections(page: str) -> Iterable[str]:
    return [one for one in re.split(r"(?m)^(?=## )", page) if one.startswith("## ")]


def _heading(text: str) -> str:
    return text.splitlines()[0].removeprefix("## ")


def _wrapped(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(text, 118, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _names(names: list[str]) -> str:
    shown = ", ".join(f"`{name}`" for name in names[:NAMES_SHOWN])
    return shown if len(names) <= NAMES_SHOWN else f"{shown} and {len(names) - NAMES_SHOWN} more"
