"""README.md and docs/: the README's commands run, programs accept all pages' commands, Python runs, TOML loads."""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from scenarios.experiment import command as experiment
from scenarios.spec.load import load_scenario
from tests.conftest import PROJECT

LANGUAGES = {"sh", "toml", "python", ""}  # blocks without a language are output and drawings
NOTEBOOK = "notebook.md"  # whose blocks follow from each other
QUESTIONS = "questions.md"
SHOWN = r"results/[A-Za-z0-9_.-]+-[0-9]{8}-[0-9]{6}"  # the names of run folders in examples
PAGES = {page.name: page.read_text(encoding="utf-8") for page in (PROJECT / "README.md", *PROJECT.glob("docs/*.md"))}


@dataclass(frozen=True)
class Block:
    """A fenced block: its page, the number of its first line, its language and its text."""

    page: str
    line: int
    language: str
    text: str


def blocks(page: str) -> Iterator[Block]:
    """Yield the fenced blocks of a page."""
    fence = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    for found in fence.finditer(PAGES[page]):
        yield Block(page, PAGES[page].count("\n", 0, found.start()) + 1, found[1].strip(), found[2])


BLOCKS = [block for page in PAGES for block in blocks(page)]


def commands(*pages: str) -> list[str]:
    """Return every distinct command of these pages, without its trailing comment."""
    text = "".join(block.text for block in BLOCKS if block.language == "sh" and block.page in pages)
    bare = [" ".join(re.sub(r"(^|\s+)#( .*|$)", "", line).split()) for line in text.splitlines()]
    return [line for line in dict.fromkeys(bare) if line]


def blocks_in(language: str) -> list[Any]:
    """Return the blocks in a language as parameters of a test."""
    return [pytest.param(block, id=f"{block.page}:{block.line}") for block in BLOCKS if block.language == language]


# --- commands and code that run -------------------------------------------------------------------------------------


def more(options: str) -> Callable[[str], str]:
    """Return a function that appends these options to a command."""
    return lambda command: f"{command} {options}"


FIRST = r"bash scenarios/setup\.sh && .*scenarios/run\.py$"
RUN: tuple[tuple[str, Callable[[str], str]], ...] = (
    # patterns of the README's commands, and the command to run instead: the same one or a shorter one
    (
        r"bash scenarios/setup\.sh && .*python -m pytest",  # the first command has done the set-up
        lambda command: f"{command.partition(' && ')[2]} --collect-only tests/test_layout.py",
    ),
    (FIRST, more("--collectives 3 --modes base,joint --out results/shown")),
    (r".* --(doctor|resume|cli|exec)", more("")),
    (r".*scenarios/run\.py authors", more("--collectives 100")),
    (r".*scenarios/run\.py sizing", more("")),
    (r".*scenarios/run\.py .*--engine model", more("--collectives 200 --no-report")),
    (r".*scenarios/run\.py mine\.toml", more("--collectives 2 --modes base --no-report")),
    (r".*scenarios/collectives\.py", more("--from 1MB --factor 512 --collectives 2")),
    (r".*scenarios/campaign\.py", lambda command: re.sub(r"--count [0-9]+", "--count 1", command)),
    # on the run of the first command, as no other command may have run before
    (r".*python -m analysis\.", lambda command: command.replace("results/fig4a", "results/shown")),
)


STAMP = "cat pyproject.toml scenarios/setup.sh <(/usr/bin/python3 --version) | sha256sum"
"""The command whose output scenarios/setup.sh compares with its stamp in .venv."""


def sh(command: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=cwd, env={**os.environ, "TERM": "dumb"}, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        check=False, timeout=600,
    )  # fmt: skip


def shortened(command: str) -> str:
    """Return the command to run for a command of the README."""
    change = next((change for pattern, change in RUN if re.match(pattern, command)), None)
    assert change is not None, f"README.md has a command that RUN in {Path(__file__).name} does not know: {command}"
    return change(command)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A copy of the project's folder made of links, with the pages' scenarios and programs (blocks whose first line
    is a comment with the file's name) and, under the names of all run folders in the pages, a run of two modes in both
    engines. The README's first command, which does all of the set-up, makes this run."""
    with tempfile.TemporaryDirectory(prefix="longhaul-test-") as name:
        folder = Path(name)
        for item in PROJECT.iterdir():
            if item.name != "results":
                (folder / item.name).symlink_to(item)
        (folder / "my.toml").write_text("[run]\nseed = 2\n")
        for block in BLOCKS:
            if block.language in ("toml", "python") and (named := re.match(r"# *([\w.-]+\.(?:toml|py))\n", block.text)):
                (folder / named[1]).write_text(block.text)
        # If .venv were out of date, the set-up would replace it while other tests use it.
        current = sh(f"{STAMP} | cmp - .venv/longhaul.stamp", PROJECT)
        assert current.returncode == 0, "set-up is out of date: run `bash scenarios/setup.sh` before the tests"
        (first,) = (command for command in commands("README.md") if re.match(FIRST, command))
        run = sh(shortened(first), folder)
        assert run.returncode == 0, run.stderr
        assert "Traceback" not in run.stderr, run.stderr
        for shown in {shown for page in PAGES.values() for shown in re.findall(SHOWN, page)}:
            (folder / shown).symlink_to(folder / "results" / "shown")
        yield folder


@pytest.mark.parametrize("command", commands("README.md"))
def test_every_command_of_the_readme_runs(command: str, folder: Path) -> None:
    if re.match(FIRST, command):  # the fixture `folder` has run it
        return
    done = sh(shortened(command), folder)
    assert done.returncode == 0, f"{done.stdout[-1000:]}\n{done.stderr[-2000:]}"
    assert "Traceback" not in done.stderr, done.stderr


@pytest.mark.parametrize("block", [one for one in blocks_in("python") if one.values[0].page != NOTEBOOK])
def test_every_python_block_runs(block: Block, folder: Path) -> None:
    (folder / "block.py").write_text(block.text)
    done = sh(".venv/bin/python block.py", folder)
    assert done.returncode == 0, f"{block.page}, line {block.line}: {done.stderr}"


def test_the_cells_of_the_notebook_run_in_order_and_print_what_is_shown(folder: Path) -> None:
    cells = [block for block in BLOCKS if block.page == NOTEBOOK]
    code = [f"{block.text}\nprint('---')" for block in cells if block.language == "python"]
    (folder / "cells.py").write_text("\n".join(code))
    done = sh(".venv/bin/python cells.py", folder)
    assert done.returncode == 0, done.stderr
    printed = re.sub(r"[ \t]+$", "", done.stdout, flags=re.MULTILINE).split("---\n")
    assert [text for text in printed if text] == [block.text for block in cells if block.language == ""]
    for name in ("comparison.svg", "over_time.svg"):
        assert (folder / name).read_text().startswith("<?xml")


@pytest.mark.parametrize("number", range(len([one for one in BLOCKS if (one.page, one.language) == (QUESTIONS, "sh")])))
def test_every_question_is_answered_by_the_lines_shown(number: int, folder: Path) -> None:
    """Lines are wrapped on the page, and "..." stands for others."""
    (asked, answered) = [[one for one in BLOCKS if (one.page, one.language) == (QUESTIONS, it)] for it in ("sh", "")]
    command = asked[number].text.strip()
    done = sh(command if "--exec" in command else f"{command} --no-report", folder)
    assert done.returncode == 0, done.stderr
    for passage in answered[number].text.split("...\n"):
        assert " ".join(passage.split()) in " ".join(done.stdout.split())


@pytest.mark.parametrize("block", [one for one in blocks_in("") if "mininet> " in one.values[0].text])
def test_every_prompt_session_prints_the_output_shown(block: Block, folder: Path) -> None:
    typed = re.findall(r"^mininet> (.*)\n", block.text, re.MULTILINE)
    (folder / "typed").write_text("\n".join(typed))
    done = sh(".venv/bin/python scenarios/run.py --cli < typed", folder)
    shown = re.sub(r"^mininet> .*\n", "", block.text, flags=re.MULTILINE)
    # Times that vary by less than a microsecond with the versions of libraries are left out.
    fine = re.compile(r"^(\(.* of virtual time\)|rtt min/avg/max/mdev = .* ms)\n?|, time \d+ms$", re.MULTILINE)
    assert fine.sub("", done.stdout) == fine.sub("", shown), done.stderr


# --- commands that are parsed ---------------------------------------------------------------------------------------

MANUAL = {
    # commands that other tests run, with the name of the test
    "mn": "test_mn_pingall_reaches_every_gpu_with_the_controller",
    "vagrant": "test_a_bare_machine_is_set_up_and_runs_the_command_as_written",
    ".venv/bin/pip": "test_a_trained_model_puts_on_the_wan_what_its_gradients_imply",
}


PARSE = """
import argparse, runpy, sys
parse = argparse.ArgumentParser.parse_args
def only_parse(*arguments):
    parse(*arguments)
    sys.exit(77)
argparse.ArgumentParser.parse_args = only_parse
program, sys.argv = sys.argv[1], sys.argv[1:]
(runpy.run_path if program.endswith(".py") else runpy.run_module)(program, run_name="__main__")
"""
"""Runs a program (a file or a module) until its arguments are parsed, then ends it with exit status 77."""


@pytest.mark.parametrize("command", commands(*PAGES))
def test_every_command_is_accepted_by_its_program(command: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    words = shlex.shlex(command, posix=True, punctuation_chars="|&;")
    words.whitespace_split = True
    for part in shlex.join(words).replace("'|'", "\n").replace("'&&'", "\n").splitlines():
        program, *arguments = [word for word in shlex.split(part) if word != "sudo" and not re.match("[A-Z_]+=", word)]
        if re.fullmatch(r"(\.venv/bin/)?python3?", program):
            check_arguments(arguments)
        elif program in MANUAL:
            tests = (file.read_text() for file in PROJECT.glob("tests/**/test_*.py"))
            assert any(f"def {MANUAL[program]}(" in text for text in tests), f"there is no {MANUAL[program]}"
        else:
            assert program in ("printf", "cd") or [program, *arguments] == ["bash", "scenarios/setup.sh"], command


def check_arguments(arguments: list[str]) -> None:
    """Fail unless the program that a `python` command starts accepts its arguments."""
    if arguments[:2] == ["-m", "pytest"]:
        for word in arguments[2:]:
            assert ".py" not in word or list(PROJECT.glob(word)), f"there is no {word}"
    elif arguments == ["scenarios/run.py", "--doctor"]:
        return
    elif arguments[0] == "scenarios/run.py" and arguments[1:2] not in (["authors"], ["diloco"], ["papers"], ["sizing"]):
        # Another test may have made the folder of --out.
        words = [re.sub(r"^results/fig4a$", "results/new", word) for word in arguments[1:] if word != "--cli"]
        assert experiment.run([*words, "--dry-run"]) == 0
    elif arguments != ["-m", "json.tool"]:
        words = shlex.join([sys.executable, "-c", PARSE, *arguments[arguments[0] == "-m" :]])
        done = sh(words, PROJECT)
        assert done.returncode == 77, done.stderr


# --- TOML, links and reference --------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", blocks_in("toml"))
def test_every_toml_block_loads_as_a_scenario(block: Block, tmp_path: Path) -> None:
    (tmp_path / "scenarios").symlink_to(PROJECT / "scenarios")  # of which a block names a trace
    path = tmp_path / "scenario.toml"
    path.write_text(block.text)
    assert load_scenario(str(path)).configurations()


def test_blocks_have_known_languages_and_the_readme_the_expected_command_count() -> None:
    assert {block.language for block in BLOCKS} <= LANGUAGES
    assert len(commands("README.md")) == 15


RECIPES = sorted(f"programs/{page.name}" for page in PROJECT.glob("docs/programs/*.md"))


@pytest.mark.parametrize("page", [*PAGES, *RECIPES])
def test_every_relative_link_points_to_an_existing_file_and_heading(page: str) -> None:
    here = PROJECT / ("README.md" if page == "README.md" else f"docs/{page}")
    for path, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", here.read_text(encoding="utf-8")):
        file = here.parent / path if path else here
        assert file.is_file(), f"{page} links to {path}"
        headings = re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE) if anchor else []
        anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
        assert not anchor or anchor in anchors, f"{page} links to {path}#{anchor}"


@pytest.mark.parametrize(
    ("page", "name", "module"),
    [("scenarios.md", "keys", "scenarios.spec.reference"), ("results.md", "columns", "analysis.results.columns")],
)
def test_a_reference_is_what_its_module_prints(page: str, name: str, module: str) -> None:
    table = PAGES[page].partition(f"<!-- {name} -->")[2].partition(f"<!-- /{name} -->")[0]
    made = sh(f".venv/bin/python -m {module}", PROJECT)
    assert made.returncode == 0, made.stderr
    assert table.strip() == made.stdout.strip()
