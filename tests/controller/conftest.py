"""A controller of its own for each test that asks for one."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.controller.running import Process


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    with closing(Process(tmp_path)) as found:
        yield found
