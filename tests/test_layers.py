"""Which way imports go: topologies <- hosts, controller, analysis <- scenarios, and nobody imports scenarios."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ALLOWED = {
    "topologies": set(),
    "hosts": {"topologies"},
    "controller": {"topologies"},
    "analysis": {"topologies"},
    "scenarios": {"topologies", "hosts", "controller", "analysis"},
}
MODULES = sorted(path for package in ALLOWED for path in (ROOT / package).rglob("*.py"))


def imported(path):
    """The top-level packages that a module imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            yield node.module.partition(".")[0]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_imports_its_own_package_and_those_below(path):
    package = path.relative_to(ROOT).parts[0]
    ours = {name for name in imported(path) if name in ALLOWED}
    assert ours <= ALLOWED[package] | {package}


def test_nothing_is_unpickled_from_files_nor_run_from_text():
    for path in MODULES:
        assert not {"pickle", "marshal", "shelve", "dill", "joblib"} & set(imported(path)), path
        calls = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
        assert not {call.func.id for call in calls if isinstance(call.func, ast.Name)} & {"eval", "exec"}, path
