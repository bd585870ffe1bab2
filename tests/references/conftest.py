"""What tests by references share: the folder of material that the user names, and the page that is written."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.conftest import PROJECT
from tests.references.page import Outcome, Suite, section, with_section

PAGE = PROJECT / "docs" / "references.md"

Record = Callable[[Suite, Callable[[], Mapping[str, Outcome]]], Mapping[str, Outcome]]


@pytest.fixture
def material(request: pytest.FixtureRequest) -> Callable[[str, str], Path]:
    """Return a function that gives the folder NAME of --references DIR; it skips the test, saying how to get it."""

    def find(name: str, how: str) -> Path:
        folder = request.config.getoption("--references")
        if folder is None or not (Path(folder) / name).is_dir():
            where = "no --references DIR is given" if folder is None else f"{folder} has no folder {name}"
            pytest.skip(f"{where}; into DIR: {how}")
        return Path(folder) / name

    return find


@pytest.fixture
def record() -> Record:
    """Return a function that runs a suite twice, demands the same outcomes, and writes its section of the page."""

    def run_and_write(suite: Suite, run: Callable[[], Mapping[str, Outcome]]) -> Mapping[str, Outcome]:
        outcomes = run()
        assert run() == outcomes, "the second run ended otherwise"
        text = section(suite, outcomes)
        PAGE.write_text(with_section(PAGE.read_text() if PAGE.exists() else "", text))
        return outcomes

    return run_and_write
