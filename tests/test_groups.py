"""Tests that share a fixture of their module run in one process, where they find it made."""

import pytest


@pytest.fixture(scope="module")
def shared() -> None:
    """A fixture of the module."""


@pytest.mark.usefixtures("shared")
def test_a_test_with_a_fixture_of_its_module_is_in_the_modules_group(request: pytest.FixtureRequest) -> None:
    """xdist writes the group behind the name. Without it every process made its own VM, and an order was luck."""
    if hasattr(request.config, "workerinput") and request.config.option.loadgroup:
        assert request.node.nodeid.endswith("@tests/test_groups.py")
    else:
        assert [mark.args for mark in request.node.iter_markers("xdist_group")] == [("tests/test_groups.py",)]
