"""README.md holds: every command in it runs, its Python runs, and its TOML is of scenarios that load.

How a command is run stands in RULES, where the first that fits applies: most as they are written, those that take long
with fewer collectives, those that another test runs whole not at all. A command that no rule fits fails: say how.
"""

import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from scenarios.spec.load import load_scenario
from tests.conftest import PROJECT

LANGUAGES = {"sh", "toml", "python", ""}  # without a language: what a command prints
SHOWN = r"results/[A-Za-z0-9_.-]+-[0-9]{8}-[0-9]{6}|\bDIR\b"  # run folders that stand for any


@dataclass(frozen=True)
class Block:
    """A block of code: its language, its text and the line that it begins at."""

    language: str
    text: str
    line: int


def blocks(text: str) -> Iterator[Block]:
    """The fenced blocks of a Markdown text."""
    inside: tuple[str, int] | None = None
    lines: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        fence = re.fullmatch(r"```(.*)", line)
        if fence is None:
            lines.append(line)
        elif inside is None:
            inside, lines = (fence[1].strip(), number + 1), []
        else:
            yield Block(inside[0], "\n".join(lines) + "\n", inside[1])
            inside = None
    assert inside is None, f"the block at line {inside[1] if inside else 0} does not end"


README = list(blocks((PROJECT / "README.md").read_text(encoding="utf-8")))


def commands() -> Iterator[str]:
    """Every command, without the comment behind it; a backslash at the end of a line continues it."""
    for block in README:
        if block.language == "sh":
            for line in block.text.replace("\\\n", " ").splitlines():
                if bare := re.sub(r"(^|\s+)#( .*|$)", "", line):
                    yield " ".join(bare.split())


# --- how commands are run -------------------------------------------------------------------------------------------


def fewer(number: int, *more: str) -> Callable[[str], str]:
    """The command with so many collectives, and these options."""

    def change(command: str) -> str:
        before, name, after = command.partition("scenarios/run.py")
        options, *rest = re.split(r"(?= [|>&])", after, maxsplit=1)
        options = re.sub(r" --collectives [0-9]+", "", options)
        return " ".join([before + name + options, f"--collectives {number}", *more]) + "".join(rest)

    return change


def typed(text: str) -> Callable[[str], str]:
    """The command with this typed at its prompt."""
    return lambda command: f"printf '{text}\\n' | {command}"


def as_written(command: str) -> str:
    return command


def elsewhere(test: str) -> Callable[[str], str]:
    """Nothing, because this test, `FILE::NAME`, runs it."""

    def change(_: str) -> str:
        file, _, name = test.partition("::")
        assert f"def {name}(" in (PROJECT / "tests" / file).read_text(), f"there is no {test}"
        return ""

    return change


PYTHON = r"(\.venv/bin/)?python3?"
RULES: tuple[tuple[str, Callable[[str], str]], ...] = (
    # what the commands are like, and what is made of them
    (r"bash scenarios/setup\.sh && .*python -m pytest", lambda command: f"{command} --collect-only -q"),
    (r"bash scenarios/setup\.sh && .*scenarios/run\.py", fewer(2, "--modes base,joint")),
    (r"bash scenarios/setup\.sh", as_written),
    (rf"{PYTHON} -m pytest", lambda command: f"{command} --collect-only -q"),
    (rf"{PYTHON} -m scenarios\.vm .*-- (ba)?sh$", typed("id -u; exit")),
    (rf"{PYTHON} -m scenarios\.vm ", as_written),
    (rf"{PYTHON} scenarios/run\.py.* --cli", typed("exit")),
    (
        rf"{PYTHON} scenarios/run\.py.* --dask ",
        elsewhere("test_dask.py::test_a_worker_killed_in_the_middle_changes_no_number"),
    ),
    (rf"printf .* \| {PYTHON} scenarios/run\.py --cli$", as_written),
    (rf"{PYTHON} scenarios/campaign\.py .*--show", as_written),
    (rf"{PYTHON} scenarios/campaign\.py ", lambda command: re.sub(r"--count [0-9]+", "--count 2", command)),
    (rf"{PYTHON} scenarios/run\.py.* --(doctor|help|dry-run|resume)", as_written),
    (rf"{PYTHON} scenarios/run\.py.* --engine model", fewer(200)),
    (rf"{PYTHON} scenarios/run\.py", fewer(2, "--modes base")),
    (r"sudo python scenarios/run\.py", lambda command: fewer(2, "--modes base")(command.replace("sudo ", "/usr/bin/"))),
    (rf"{PYTHON} -m analysis\.", as_written),
    (
        rf"{PYTHON} -m controller ",
        elsewhere("topologies/test_network.py::test_mn_pings_all_over_the_fabric_beside_the_controller"),
    ),
    (r"sudo mn ", elsewhere("topologies/test_network.py::test_mn_pings_all_over_the_fabric_beside_the_controller")),
    (r"vagrant ", elsewhere("scenarios/test_bare.py::test_a_bare_machine_is_set_up_and_runs_the_command_as_written")),
    (rf"{PYTHON} scenarios/bench\.py$", lambda command: f"{command} --one 8 base"),
    (r"ryu-manager ", elsewhere("controller/test_ryu.py::test_ryu_manager_loads_the_app_by_the_name_of_its_module")),
    (
        r"cd longhaul",
        elsewhere("scenarios/test_bare.py::test_a_bare_machine_is_set_up_and_runs_the_command_as_written"),
    ),
)


def to_be_run(command: str) -> str:
    """What is run for a command of the README; fails where no rule says."""
    for pattern, change in RULES:
        if re.match(pattern, command):
            return change(command)
    pytest.fail(f"README.md has a command that no rule of {Path(__file__).name} fits: {command}")


def sh(command: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "TERM": "dumb"}
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=cwd, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder that looks like the project's, where what commands write is away from it; with the README's scenarios
    (those whose first line is a comment with a file's name) and run folders."""
    with tempfile.TemporaryDirectory(prefix="longhaul-test-") as name:
        folder = Path(name)
        for item in PROJECT.iterdir():
            if item.name != "results":
                (folder / item.name).symlink_to(item)
        (folder / "my.toml").write_text("[run]\nseed = 2\n")
        for block in README:
            if block.language == "toml" and (named := re.match(r"# *([\w.-]+\.toml)\n", block.text)):
                (folder / named[1]).write_text(block.text)
        run = sh(".venv/bin/python scenarios/run.py --collectives 3 --modes base,joint --out results/shown", folder)
        assert run.returncode == 0, run.stderr
        for shown in {shown for block in README for shown in re.findall(SHOWN, block.text)}:
            (folder / shown).symlink_to(folder / "results" / "shown")
        yield folder


def test_every_block_is_in_a_language_that_is_known() -> None:
    assert {block.language for block in README} <= LANGUAGES
    assert [block for block in README if block.language == "sh"], "README.md has no commands"


@pytest.mark.parametrize("command", dict.fromkeys(commands()))
def test_every_command_runs(command: str, folder: Path) -> None:
    done = sh(to_be_run(command), folder)
    assert done.returncode == 0, f"{done.stdout[-1000:]}\n{done.stderr[-2000:]}"
    assert "Traceback" not in done.stderr, done.stderr


def test_all_of_its_python_runs(folder: Path) -> None:
    for block in (block for block in README if block.language == "python"):
        (folder / "block.py").write_text(block.text)
        done = sh(".venv/bin/python block.py", folder)
        assert done.returncode == 0, f"README.md, line {block.line}: {done.stderr}"


def test_all_of_its_scenarios_load(folder: Path) -> None:
    for block in (block for block in README if block.language == "toml"):
        path = folder / f"line-{block.line}.toml"
        path.write_text(block.text)
        assert load_scenario(str(path)).settings()
