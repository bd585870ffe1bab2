"""The page of references."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import PROJECT
from tests.references.page import FAILED, HEAD, PASSED, SKIPPED, Outcome, Suite, section, with_section

SUITE = Suite("theirs", "1.2", "PyPI", "Each case passes if it ends.")


def test_a_section_counts_outcomes_and_names_what_did_not_pass_by_reason() -> None:
    outcomes = {"a": Outcome(PASSED), "c": Outcome(FAILED, "too slow"), "b": Outcome(FAILED, "too slow")}
    text = section(SUITE, outcomes | {"d": Outcome(SKIPPED, "wants a desktop")})
    assert "Each case passes if it ends. From PyPI, version 1.2." in text
    assert "| 4 | 1 | 2 | 1 |" in text
    assert "- Failed: `b`, `c`: too slow.\n" in text and "- Skipped: `d`: wants a desktop.\n" in text


def test_what_did_not_pass_needs_a_reason() -> None:
    with pytest.raises(ValueError, match="theirs: b did not pass, and no reason is given"):
        section(SUITE, {"a": Outcome(PASSED), "b": Outcome(FAILED)})


def test_a_section_takes_the_place_of_the_one_before_and_sections_stand_by_name() -> None:
    page = with_section("", section(SUITE, {"a": Outcome(PASSED)}))
    page = with_section(page, section(SUITE._replace(name="Another"), {"a": Outcome(PASSED)}))
    page = with_section(page, section(SUITE, {"a": Outcome(PASSED), "b": Outcome(PASSED)}))
    assert page.startswith("# References") and page.count("\n## ") == 2
    assert page.index("## Another") < page.index("## theirs") and "| 2 | 2 | 0 | 0 |" in page
    assert with_section(page, section(SUITE, {"a": Outcome(PASSED), "b": Outcome(PASSED)})) == page


def test_the_command_on_the_page_is_understood_with_a_folder_elsewhere(tmp_path: Path) -> None:
    """`--references DIR` would be a folder of tests for pytest, which then reads no options of this project."""
    (command,) = re.findall(r"-m pytest (.*?)`", HEAD)
    arguments = [tmp_path.as_posix().join(word.split("DIR")) for word in command.split()]
    told = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments, "--markers"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    assert "references: runs other people's tests" in told.stdout  # of this project's pyproject.toml
