"""Nothing from a file or a socket that others can reach is unpickled or run, and no path is open to others.

Allowed are process pools, whose pipes are private: `multiprocessing` but for its listeners, managers and shared memory.

Read from the syntax tree of every Python file of the project, tests included, so that a comment is no offence and an
alias is one.
"""

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("topologies", "controller", "hosts", "analysis", "scenarios", "tests")

MODULES = {
    "pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve", "jsonpickle", "xmlrpc",
    "multiprocessing.connection", "multiprocessing.managers", "multiprocessing.shared_memory",
    "code", "codeop", "imp", "runpy",
}  # fmt: skip
BUILTINS = {"eval", "exec", "compile", "__import__"}
CALLS = {
    "os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput", "yaml.load", "yaml.unsafe_load",
    "yaml.full_load", "pandas.read_pickle", "pd.read_pickle", "tempfile.mktemp", "torch.load",
}  # fmt: skip
PICKLES = {"allow_pickle", "to_pickle", "read_pickle", "unsafe_load"}
OPEN_TO_ALL = ("/tmp", "/var/tmp", "/dev/shm")
MAKERS = {"chmod", "fchmod", "mkdir", "makedirs", "mkfifo", "mknod", "touch", "open"}
LOOKED_AT_ONLY = {
    "scenarios/vm/resources.py": "it asks how much room there is; the guest's memory is a file there that has no name",
    "tests/test_safety.py": "it names them",
}

ALLOWED = {  # file: what it may do all the same, and why
    "tests/topologies/test_fabric.py": ("imports pickle", "errors have to survive it"),
    "tests/topologies/test_network.py": ("calls ", "Mininet's own command runs a custom file in this way"),
}


def files() -> list[Path]:
    if (ROOT / ".git").exists():
        listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, check=True, capture_output=True, text=True)
        return [ROOT / name for name in listed.stdout.splitlines() if (ROOT / name).exists()]
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def offences(tree: ast.AST, name: str) -> Iterator[str]:
    """What is wrong in a file, by line."""
    for node in ast.walk(tree):
        line = f"{name}:{getattr(node, 'lineno', 0)}"
        for module in imported(node):
            if any(module == bad or module.startswith(bad + ".") for bad in MODULES):
                yield f"{line} imports {module}"
        if isinstance(node, ast.Call):
            yield from (f"{line} {what}" for what in called(node, name))
        if isinstance(node, ast.Attribute) and node.attr in PICKLES:
            yield f"{line} uses {node.attr}"
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and name not in LOOKED_AT_ONLY:
            path = node.value
            if any(path == folder or path.startswith(folder + "/") for folder in OPEN_TO_ALL) and not inside_vm(name):
                yield f"{line} names {path}, where others can write"


def inside_vm(name: str) -> bool:
    """Whether a file runs inside the VM only, whose folders nobody else sees."""
    return name.startswith("tests/")


def imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
    return []


def called(call: ast.Call, name: str) -> Iterator[str]:
    function = call.func
    if isinstance(function, ast.Name) and function.id in BUILTINS:
        yield f"calls {function.id}"
    dotted = ast.unparse(function)
    if dotted in CALLS:
        yield f"calls {dotted}"
    for keyword in call.keywords:
        if keyword.arg == "shell" and not (isinstance(keyword.value, ast.Constant) and keyword.value.value is False):
            yield "passes shell="
        if keyword.arg in PICKLES:
            yield f"passes {keyword.arg}="
    modes = [*call.args, *(keyword.value for keyword in call.keywords if keyword.arg == "mode")]
    numbers = [arg.value for arg in modes if isinstance(arg, ast.Constant) and type(arg.value) is int]
    last = dotted.rpartition(".")[2]
    if (
        last in MAKERS
        and not inside_vm(name)
        and any(number & 0o002 and number <= 0o7777 for number in numbers)
        and dotted != "os.open"
    ):
        yield f"makes something that others can write to, with {last}"
    if last == "umask" and any(number & 0o022 != 0o022 for number in numbers):
        yield "sets a umask that lets others write"


def test_there_is_something_to_look_at() -> None:
    assert len(files()) > 100


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_data_is_run_and_nothing_is_left_open_to_others(path: Path) -> None:
    name = path.relative_to(ROOT).as_posix()
    found = list(offences(ast.parse(path.read_text(encoding="utf-8"), name), name))
    may, _why = ALLOWED.get(name, ("nothing", ""))
    assert [offence for offence in found if may not in offence] == []


@pytest.mark.parametrize(
    "text",
    [
        "import pickle", "from multiprocessing.connection import Connection", "from multiprocessing import connection",
        "eval('1')", "exec(x)", "compile(x, '', 'exec')", "import os\nos.system(x)", "subprocess.run(x, shell=True)",
        "subprocess.run(x, shell=shell)", "yaml.load(x)", "np.load(x, allow_pickle=True)", "frame.to_pickle(p)",
        "open('/tmp/x')", "Path('/dev/shm/a')", "p.chmod(0o777)", "p.mkdir(mode=0o777)", "os.umask(0)",
        "tempfile.mktemp()", "from multiprocessing.managers import BaseManager", "p.touch(0o666)",
    ],
)  # fmt: skip
def test_every_offence_is_found(text: str) -> None:
    assert list(offences(ast.parse(text), "hosts/some.py"))


@pytest.mark.parametrize(
    "text", ["re.compile('a')", "run(x, shell=False)", "p.mkdir(mode=0o700)", "p.chmod(0o755)", "os.umask(0o177)"]
)
def test_what_is_harmless_is_let_pass(text: str) -> None:
    assert not list(offences(ast.parse(text), "hosts/some.py"))
