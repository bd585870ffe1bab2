"""Fixtures for every test that runs programs."""

from tests.analysis.conftest import few_pixels  # noqa: F401
