"""What every test of figures has."""

from collections.abc import Iterator

import pytest

from analysis.figures import output


@pytest.fixture(scope="session", autouse=True)
def few_pixels() -> Iterator[None]:
    """PNGs of few pixels, which nobody looks at: in full they are a third of what a figure takes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(output, "_PNG_DPI", 20)
        yield
