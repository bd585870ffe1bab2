"""Paragraphs of the README and the pages are wrapped: no line is too long, and none is broken off early."""

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MADE = re.compile(r"<!-- keys -->.*<!-- /keys -->", re.DOTALL)
"""The part of a page that `scenarios.spec.reference` writes."""
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
WIDTH, SLACK = 121, 9
NO_TEXT = re.compile(r"\||#|!\[|<|Debian:|    ")  # tables, headings, pictures, anchors, packages, text within lists
BEGINS = re.compile(r"\s*([-*] |\d+\. |```|\*\*)|\||#|!\[|<")


def broken(text: str) -> Iterator[tuple[int, str]]:
    """Yield each line of a paragraph that is too long, or that the next line's first word would have fitted on."""
    is_code = False
    for number, (line, following) in enumerate(pairwise([*text.splitlines(), ""]), 1):
        is_code ^= line.lstrip().startswith("```")
        if is_code or not line.strip() or NO_TEXT.match(line) or line.lstrip().startswith("```"):
            continue
        word = "" if not following.strip() or BEGINS.match(following) else following.split()[0]
        if len(line) > WIDTH or (word and len(line) + 1 + len(word) + SLACK <= WIDTH):
            yield number, line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paragraphs_of_a_page_are_wrapped(page: Path) -> None:
    assert [*broken(MADE.sub("", page.read_text()))] == []


def test_a_line_that_is_broken_off_or_too_long_is_found() -> None:
    line = "word " * 24
    assert [number for number, _ in broken(f"{line}\nshort\nand more text\n\n{line}{line}\n")] == [2, 5]
    assert [*broken(f"{line}\nthe end\n\n- an item\n- another\n\n```\na\nb\n```\n")] == []
