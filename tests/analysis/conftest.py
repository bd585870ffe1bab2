"""Fixtures for every test that draws figures."""

from collections.abc import Iterator

import pytest

from analysis.figures import output


@pytest.fixture(scope="session", autouse=True)
def few_pixels() -> Iterator[None]:
    """Draw PNGs at a low resolution, because no test looks at them and full ones take a third of a figure's time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(output, "_PNG_DPI", 20)
        yield
