"""The layout of the repository: its top-level entries, its module names, and which packages import which."""

import ast
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import networkx
import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("topologies", "controller", "hosts", "analysis", "scenarios")
MAY_IMPORT = {
    "topologies": {"topologies"},
    "controller": {"controller", "topologies"},
    "hosts": {"hosts", "topologies"},
    "analysis": {"analysis", "topologies"},
    "scenarios": set(PACKAGES),
}
RANK = ROOT / "scenarios" / "program" / "rank"
FILES = {"README.md", "pyproject.toml", "Vagrantfile", "LICENSE", ".gitignore"}
TOP_LEVEL = {*FILES, ".ci", "docs", "tests", *PACKAGES}


@cache
def nodes(path: Path) -> list[ast.AST]:
    """Return the nodes of a module's syntax tree."""
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))))


def imported(path: Path) -> Iterator[str]:
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            # Packages for ranks have another name there than in this repository.
            assert node.level == 0 or RANK in path.parents, f"{path}:{node.lineno} imports by a relative name"
            yield node.module or ""


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_imports_only_the_packages_allowed_to_it(package: str) -> None:
    modules = sorted((ROOT / package).rglob("*.py"))
    assert modules
    for module in modules:
        own = {name.partition(".")[0] for name in imported(module)} & {*PACKAGES, "tests"}
        assert own <= MAY_IMPORT[package], f"{module.relative_to(ROOT)} imports {sorted(own - MAY_IMPORT[package])}"


def test_no_modules_import_each_other_in_a_circle() -> None:
    paths = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
    }
    graph = networkx.DiGraph()
    for name, path in paths.items():
        for node in nodes(path):
            if isinstance(node, ast.Import):
                wanted = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                inner = [f"{node.module}.{alias.name}" for alias in node.names]
                wanted = [each if each in paths else str(node.module) for each in inner]
            else:
                continue
            graph.add_edges_from((name, each) for each in wanted if each in paths)
    assert graph.number_of_edges() > 500
    assert [sorted(circle) for circle in networkx.strongly_connected_components(graph) if len(circle) > 1] == []


def test_the_top_level_holds_only_known_entries() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout, so what belongs to the project is not known")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert {line.partition("/")[0] for line in listed.splitlines()} <= TOP_LEVEL


def test_no_module_has_a_vague_name() -> None:
    vague = {"utils", "util", "helpers", "helper", "common", "manager", "misc"}
    named = {path.stem for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    assert not named & vague


def test_no_module_unpickles_data_or_evaluates_text() -> None:
    for module in sorted(module for package in PACKAGES for module in (ROOT / package).rglob("*.py")):
        names = {name.partition(".")[0] for name in imported(module)}
        assert not names & {"pickle", "marshal", "shelve", "dill", "joblib"}, module
        calls = [node for node in nodes(module) if isinstance(node, ast.Call)]
        if module.name == "longhaul_zygote.py":
            continue  # it is the interpreter of the user's own program
        assert not {call.func.id for call in calls if isinstance(call.func, ast.Name)} & {"eval", "exec"}, module
