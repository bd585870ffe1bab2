"""The recipes of docs/programs: each command runs, and each number of its table is what the page says."""

import os
import re
import shlex
import shutil
import subprocess
import venv
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.conftest import PROJECT
from tests.fakes.runs import ended

FOLDER = PROJECT / "docs" / "programs"
PACKAGES = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "longhaul" / "programs"
NUMBER = r"([\d,]*\.?\d+(?:e-?\d+)?)"


@dataclass(frozen=True)
class Row:
    """A number that a recipe's output has: a pattern with one group, and the least and the most that it may be."""

    pattern: str
    least: float
    most: float


@dataclass(frozen=True)
class Recipe:
    """A section of a page: packages of Debian and PyPI, files by name, also those of sections before it, commands, and
    rows of its table."""

    name: str
    debian: tuple[str, ...]
    pypi: tuple[str, ...]
    commands: tuple[str, ...]
    rows: tuple[Row, ...]
    files: dict[str, str] = field(hash=False)


def fenced(text: str, language: str) -> list[str]:
    """Return the fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def named_files(text: str) -> dict[str, str]:
    """Return the blocks whose first line is a comment with the name of a file."""
    blocks = fenced(text, r"\w+")
    found = {block: re.match(r"(?:#|//) *([\w.-]+\.\w+)\n", block) for block in blocks}
    return {named[1]: block for block, named in found.items() if named}


def packages(text: str, archive: str) -> tuple[str, ...]:
    """Return the packages that the lines "Debian: `a`, `b`." or "PyPI: ..." name."""
    listed = re.findall(rf"^{archive}: (.*?)\.$", text, re.MULTILINE | re.DOTALL)
    return tuple(re.findall(r"`([^`]+)`", " ".join(listed)))


def rows(text: str) -> Iterator[Row]:
    """Yield the rows of a table with the columns measured, in the output, should be, because."""
    for line in re.findall(r"^\| (?!measured|---)(.*) \|$", text, re.MULTILINE):
        _, pattern, wanted, because = line.split(" | ")
        assert because, line
        bounds = re.fullmatch(rf"{NUMBER} within {NUMBER} %|{NUMBER} to {NUMBER}|{NUMBER}", wanted)
        assert bounds, f"should be NUMBER, NUMBER within NUMBER %, or NUMBER to NUMBER: {wanted}"
        middle, percent, least, most, exact = [float((one or "0").replace(",", "")) for one in bounds.groups()]
        off = middle * percent / 100
        yield Row(pattern.strip("`"), middle - off + least + exact, middle + off + most + exact)


def recipes() -> Iterator[Recipe]:
    """Yield the recipes of all pages: the sections that have a command."""
    for page in sorted(FOLDER.glob("*.md")):
        files: dict[str, str] = {}
        for section in re.split(r"^## ", page.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
            commands = [line for block in fenced(section, "sh") for line in block.replace("\\\n", " ").splitlines()]
            files = files | named_files(section)
            if commands:
                yield Recipe(
                    f"{page.stem}: {section.partition(chr(10))[0]}",
                    packages(section, "Debian"),
                    packages(section, "PyPI"),
                    tuple(commands),
                    tuple(rows(section)),
                    files,
                )


RECIPES = {recipe.name: recipe for recipe in recipes()}
SCENARIO = named_files((FOLDER / "README.md").read_text(encoding="utf-8"))


def environment(wanted: tuple[str, ...]) -> Path:
    """Return the folder of programs of an environment with these packages of PyPI, which is made once."""
    folder = PACKAGES / re.sub(r"[^\w.=-]+", "+", "+".join(wanted))
    if not (folder / "ready").exists():
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder, with_pip=True)
        install = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", *wanted]
        subprocess.run(install, check=True, timeout=900)
        (folder / "ready").touch()
    return folder / "bin"


def installed(package: str) -> bool:
    """Return whether Debian's package is installed."""
    asked = ["dpkg-query", "-W", "-f=${db:Status-Status}", package]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout == "installed"


def test_every_recipe_has_a_number_with_a_reason() -> None:
    assert RECIPES
    for recipe in RECIPES.values():
        assert recipe.rows, recipe.name
        for row in recipe.rows:
            assert re.compile(row.pattern).groups == 1 and row.least <= row.most, (recipe.name, row)


@pytest.mark.slow
@pytest.mark.programs
@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_gives_the_numbers_of_its_table(name: str, tmp_path: Path) -> None:
    recipe = RECIPES[name]
    missing = [package for package in recipe.debian if not installed(package)]
    assert not missing, f"install what this recipe takes: sudo apt-get install {' '.join(missing)}"
    path = os.environ["PATH"]
    if recipe.pypi:
        path = f"{environment(recipe.pypi)}:{path}"
    for file, text in (SCENARIO | recipe.files).items():
        (tmp_path / file).write_text(text)
    shown = ""
    for number, command in enumerate(recipe.commands):
        words = shlex.split(command)
        if words[:2] != [".venv/bin/python", "scenarios/run.py"]:
            found = shutil.which(words[0], path=path) or words[0]
            subprocess.run([found, *words[1:]], cwd=tmp_path, check=True, timeout=600, env={**os.environ, "PATH": path})
            continue
        out = tmp_path / f"run{number}"
        printed, _ = ended(*words[2:], "--out", out, cwd=tmp_path, env={**os.environ, "PATH": path})
        outputs = sorted((out / "output").glob("*"))
        shown += printed + "".join(one.read_text(errors="replace") for one in outputs)
    for row in recipe.rows:
        found = [float(one.replace(",", "")) for one in re.findall(row.pattern, shown, re.MULTILINE)]
        assert found, f"nothing in the output matches {row.pattern}:\n{shown[-3000:]}"
        wrong = [one for one in found if not row.least <= one <= row.most]
        assert not wrong, f"{row.pattern}: {wrong}, not from {row.least:g} to {row.most:g}\n{shown[-3000:]}"
