"""What a run says on the terminal is in its report, and no table has an empty column or a cell that is empty unsaid."""

import csv
import html.parser
import json
import re
from pathlib import Path

import pytest

from scenarios import text_table
from tests.fakes.commands import FakeTestbeds, run, testbeds  # noqa: F401
from tests.fakes.runs import ended

FAULT = """
[conditions]
wan_delay = "1 ms"
[collective]
count = 30
emulated = 5
[run]
modes = ["base", "wan"]
[[fault]]
at = "collective 2"
what = "link s0b0-s1b0 down"
for = "2 collectives"
[[policy]]
name = "now_and_then"
reroute = "drift 0.2"
"""
ALGORITHMS = """
[fabric]
grain = "physical"
[conditions]
wan_rate = "25 Gbit/s"
[collective]
kind = "allreduce"
count = 70
[run]
modes = ["base"]
[sweep]
collective.algorithm = ["ring", "tree"]
"""
JOBS = """
[collective]
kind = "allreduce"
size = "64 MB"
count = 5
[run]
modes = ["base"]
[sweep]
job = [
    [{ name = "mine", ranks = [0, 1, 4, 5] }],
    [{ name = "mine", ranks = [0, 1, 4, 5] }, { name = "other", ranks = [2, 3, 6, 7], size = "256 MB" }],
]
"""
RUNS = {
    "fault": (FAULT, "both"),
    "algorithms": (ALGORITHMS, "model"),
    "jobs": (JOBS, "both"),
    "transfers": (Path("scenarios/admission.toml").read_text(), "model"),
    "training": (Path("scenarios/geopipe.toml").read_text(), "model"),
}


class Page(html.parser.HTMLParser):
    """The lines and the tables of a report, without its figures."""

    def __init__(self, text):
        super().__init__()
        self.lines, self.tables, self.drawn = [""], [], 0
        self.feed(text)
        self.lines = [line.rstrip() for line in self.lines]

    def handle_starttag(self, tag, _):
        self.drawn += tag == "svg"
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
        if tag in ("p", "div", "td", "th"):
            self.lines.append("")

    def handle_endtag(self, tag):
        self.drawn -= tag == "svg"
        self.lines.append("")

    def handle_data(self, data):
        if not self.drawn:
            self.lines[-1] += data
            if self.tables and self.tables[-1]:
                self.tables[-1][-1][-1] += data


@pytest.fixture(params=RUNS)
def told(request, testbeds, tmp_path, capsys):
    """A run: its folder, and the lines on stdout and stderr."""
    text, engine = RUNS[request.param]
    testbeds(FakeTestbeds())
    Path("mine.toml").write_text(text)
    run("mine.toml", "--engine", engine, "--out", "out")
    printed = capsys.readouterr()
    return Path("out"), printed.out.splitlines(), printed.err.splitlines()


def printed(line):
    return re.sub(r"(?<=\d) us\b", " µs", line)


def test_the_report_has_every_line_of_the_terminal(told):
    folder, out, err = told
    page = Page((folder / "report.html").read_text())
    table = next(number for number, line in enumerate(out) if line.startswith("engine "))
    above, below = out[:table], out[out.index("", table) :]
    notes = [line.removeprefix("run.py: ") for line in err if line.startswith("run.py: ")]
    above = [line for line in above if not line.startswith("all rows: ")]  # the report's rows have it each
    wanted = [printed(line) for line in [*notes, *above, *below[:-1]] if line]
    assert len(wanted) > 3 and below[-1] == f"results in {folder}"
    assert [line for line in wanted if line not in page.lines] == []


def test_each_of_several_reasons_for_empty_cells_has_its_rows():
    """Two rows have no change, two no time for changes: a reader sees which; a single reason holds for all."""
    cells, rows = ["", "", "", "0.000, once"], ["model base", "model wan", "emulation base", "emulation wan"]
    no_time, no_change = "no time is counted", "nothing was changed"
    found = text_table.told(cells, "changes", [no_time, no_time, no_change, ""], rows)
    assert found[0] == ["-", "-", "-", "0.000, once"]
    assert found[1] == [f"- under changes: in model base, model wan: {no_time}; in emulation base: {no_change}"]
    assert text_table.told(cells, "changes", [no_time] * 4, rows)[1] == [f"- under changes: {no_time}"]


def test_a_change_that_takes_no_virtual_time_is_told_beside_points_without_any(tmp_path):
    """One link has the higher rate in turn, so wan changes paths, in 0.000 ms; base changes none and has "-"."""
    rates = [f"{at},{link},{rate} Gbit/s" for at in range(4) for link, rate in swapped(at)]
    (tmp_path / "swaps.csv").write_text("\n".join(["time,link,rate", *rates]))
    options = ("--set", 'conditions.sampler="trace"', "--set", 'conditions.trace="swaps.csv"', "--collectives", "4")
    links = ("--set", 'fabric.wan={links=[["s0b0","s1b0"],["s0b1","s1b1"]]}', "--set", 'conditions.wan_delay="5 ms"')
    counted = ("--modes", "base,wan", "--engine", "model", "--set", "control.counted=true", "--no-report")
    out, _ = ended(*options, *links, *counted, "--out", tmp_path / "out", cwd=tmp_path)
    assert "0.000, 3 times" in out
    assert "0.000 under reconfiguration: paths alone were changed, which takes no virtual time" in out.splitlines()


def swapped(at):
    """Return the links with their rates in a step of a trace: 80 and 10 Gbit/s, which change places in every step."""
    return [(link, 80 if (pair + at) % 2 else 10) for pair, ends in enumerate((("s0b0", "s1b0"), ("s0b1", "s1b1")))
            for link in (f"{ends[0]}>{ends[1]}", f"{ends[1]}>{ends[0]}")]  # fmt: skip


def test_no_table_has_an_empty_column_and_each_empty_cell_has_its_reason(told):
    folder, out, _ = told
    page = Page((folder / "report.html").read_text())
    for heads, *rows in page.tables:
        for head, *cells in zip(heads, *rows, strict=True):
            assert {*cells} - {"", "-"}, head
            assert "" not in cells, head
            name = re.sub(r" \(.*|, .*", "", head)
            assert "-" not in cells or any(line.startswith(f"- under {name}") for line in page.lines), head
    table = next(number for number, line in enumerate(out) if line.startswith("engine "))
    heads, *rows = (re.split(r"  +", line) for line in out[table : out.index("", table)])
    assert {len(row) for row in rows} == {len(heads)}  # no cell is blank
    for head, *cells in zip(heads, *rows, strict=True):
        assert {*cells} != {"-"}, head
        name = re.sub(r" \(.*|, .*| over .*", "", head)
        assert "-" not in cells or any(line.startswith(f"- under {name}") for line in out), head
    with (folder / "summary.csv").open() as file:
        assert "gain" in csv.DictReader(file).fieldnames  # scripts read columns by name, also where all are empty


def test_the_report_tells_which_points_failed_until_they_are_measured(testbeds, capsys):
    testbeds(FakeTestbeds(failing=("wan",), times=2))
    options = ("--engine", "emulation", "--modes", "base,wan", "--collectives", "4", "--out", "out")
    run(*options, status=1)
    (why,) = [
        line for line in capsys.readouterr().err.splitlines() if "the switch fell over" in line and "run.py" in line
    ]
    page = Page(Path("out/report.html").read_text())
    assert printed(why.removeprefix("run.py: ")) in page.lines and not any("is fastest" in line for line in page.lines)
    testbeds(FakeTestbeds())
    run("--resume", "out")
    sentence = capsys.readouterr().out.partition("\n")[0]
    page = Page(Path("out/report.html").read_text())
    assert "base and wan compared over 4 AllGathers" in sentence and printed(sentence) in page.lines
    assert not any("fell over" in line for line in page.lines)


def test_a_bound_in_the_model_of_shared_links_is_told_from_the_other_one(testbeds, tmp_path, capsys):
    """Of the same network and size, the trees have flows that share ports, and with it the lower of two bounds."""
    Path("mine.toml").write_text(ALGORITHMS)
    run("mine.toml", "--engine", "model", "--no-report", "--out", "out")
    out = capsys.readouterr().out.splitlines()
    run("--resume", "out", "--json", "--no-report")
    points = json.loads(capsys.readouterr().out)["points"]
    shares = [bool(point.get("shared_links")) for point in points]
    assert sorted({*shares}) == [False, True]
    lines = [line for line in out if line.startswith("model  ")]
    for point, line, is_shared in zip(points, lines, shares, strict=True):
        assert (f"  * {1e3 * point['mean_bound_s']:.3f}  " in line) is is_shared
        assert ("shared links" in point["bound_of"]) is is_shared
    (said,) = [line for line in out if line.startswith("lower bound: ")]
    assert "; *: where flows can share links the lower one" in said
