"""The report of a run: one self-contained page that loads nothing external and fits any screen."""

import base64
import csv
import gzip
import html.parser
import io
import json
import re
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analysis.report import __main__ as report
from analysis.results.reader import load
from tests.conftest import PROJECT
from tests.fakes import browser
from tests.fakes.stored import write_run

SIZES = [(1200, 900), (390, 844)]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A reported run of both engines, with HTML markup in its label, provenance and scenario."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    write_run(folder, overrides={"sweep.collective.chunk": ["1 MB", "2 MB"]}, modelled=1200, emulated=12)
    settings = json.loads((folder / "settings.json").read_text())
    settings[1]["label"] = "<script>alert('label')</script>"
    (folder / "settings.json").write_text(json.dumps(settings))
    provenance = json.loads((folder / "provenance.json").read_text())
    provenance |= {"<img src=http://x/>": ["</pre><script>alert(1)</script>"], "command": ["run.py", "<b>bold</b>"]}
    (folder / "provenance.json").write_text(json.dumps(provenance))
    (folder / "scenario.toml").write_text("# </pre><iframe src=x></iframe>\n")
    assert report.write(folder) == folder / "report.html"
    return folder


class Elements(html.parser.HTMLParser):
    """Parser that collects every element of a page with its attributes, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.words += data


@pytest.fixture(scope="module")
def page(run) -> Elements:
    return Elements((run / "report.html").read_text())


def test_the_report_contains_no_scripts_and_no_external_references(page):
    assert not {"script", "iframe", "img", "object", "embed", "form", "base"} & {tag for tag, _ in page.found}
    for tag, attributes in page.found:
        assert not [name for name in attributes if name.startswith("on")], (tag, attributes)
        for name in ("href", "src", "xlink:href", "action"):
            value = attributes.get(name)
            assert value is None or value.startswith(("#", "data:")), (tag, value)
    policy = next(a["content"] for tag, a in page.found if a.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in policy
    assert not re.search(r"url\((?!#)", (page.words))


def test_element_ids_are_unique_and_every_internal_reference_resolves(page):
    ids = [attributes["id"] for _, attributes in page.found if "id" in attributes]
    assert len(ids) == len(set(ids))
    for _, attributes in page.found:
        used = [attributes[key] for key in ("xlink:href", "href") if (attributes.get(key) or "").startswith("#")]
        wanted = [value[1:] for value in used] + re.findall(r"url\(#([^)]*)\)", " ".join(map(str, attributes.values())))
        assert set(wanted) <= set(ids)


def test_markup_in_stored_text_appears_as_text_in_the_report(page):
    label, image = "<script>alert('label')</script>", "<img src=http://x/>"
    assert all(words in page.words for words in (label, image, "</pre><iframe src=x></iframe>", "<b>bold</b>"))


def links(page: Elements) -> dict[str, bytes]:
    """Return the (decompressed) contents of the page's downloads by file name."""
    found = {}
    for tag, attributes in page.found:
        if tag == "a" and "download" in attributes:
            data = base64.b64decode(attributes["href"].partition(";base64,")[2])
            found[attributes["download"]] = gzip.decompress(data) if attributes["download"].endswith(".gz") else data
    return found


def test_all_rows_and_figure_data_can_be_downloaded_from_the_report(run, page):
    stored = pq.read_table(run / "collectives.parquet").to_pandas()
    files = links(page)
    for (engine, setting, mode), here in stored.groupby(["engine", "setting", "mode"]):
        name = f"{engine}-{setting}-{mode}.csv"
        rows = list(csv.DictReader(io.StringIO(files.get(name, files.get(f"{name}.gz")).decode())))
        assert list(rows[0]) == list(stored.columns)
        assert [float(row["completion_s"]) for row in rows] == here.completion_s.tolist()
        assert rows[5]["ring"] == " ".join(map(str, here.iloc[5].ring))
    for path in (run / "figures").glob("*.csv"):
        assert files[path.name] == path.read_bytes()
    assert files["run-timeline.json"] == (run / "figures" / "run-timeline.json").read_bytes()


WRITER = """
import sys
from pathlib import Path
from analysis.figures.output import write_file
for _ in range(300):
    write_file(Path(sys.argv[1]), bytes(100_000))
"""


def test_two_processes_can_write_the_same_report_at_once(tmp_path):
    command = [sys.executable, "-c", WRITER, str(tmp_path / "report.html")]
    writers = [subprocess.Popen(command, cwd=PROJECT, stderr=subprocess.PIPE) for _ in range(2)]
    assert [(writer.communicate()[1], writer.returncode) for writer in writers] == [(b"", 0)] * 2
    assert [(file.name, file.stat().st_size) for file in tmp_path.iterdir()] == [("report.html", 100_000)]


def test_the_report_begins_with_the_answer_followed_by_the_fidelity(page):
    answer, fidelity, figures = (page.words.index(w) for w in ("joint is fastest", "median of measured", "Figures"))
    assert answer < fidelity < figures
    assert "compared over 1,200 AllGathers each (timing model), 2 configurations" in page.words


def test_the_report_counts_collectives_that_a_fault_disturbed_and_their_drops(tmp_path):
    folder = write_run(tmp_path / "run", overrides={"run.modes": ["base", "wan"]}, modelled=30, emulated=12)
    table = pq.read_table(folder / "collectives.parquet")
    rows = table.to_pandas()
    struck = (rows["engine"] == "emulation") & (rows["collective"] == 7)
    for name, value in (("undisturbed", False), ("drops", 11_718)):
        column = rows[name].mask(struck, value).astype(rows[name].dtype)
        index = table.schema.get_field_index(name)
        table = table.set_column(index, table.schema.field(index), pa.array(column, table.schema.field(index).type))
    pq.write_table(table, folder / "collectives.parquet")
    words = Elements(report.write(folder).read_text()).words
    assert re.search(r"24\s*collectives measured, 2 of them disturbed by a fault and left out of the comparison", words)
    assert re.search(r"23,436\s*packets dropped, 23,436 of them in disturbed collectives", words)
    assert "24 collectives measured at 2 points" in words
    assert "should lose none" not in words


def test_the_report_summary_shows_the_stored_means_and_totals(run, page):
    stored = pq.read_table(run / "collectives.parquet").to_pandas()
    for _, here in stored.groupby(["engine", "setting", "mode"]):
        assert f"{here.completion_s.mean() * 1e3:,.3f}" in page.words
        assert f"{here.completion_s.sum():,.3f}" in page.words


def test_a_report_that_omits_rows_or_figures_names_what_it_omits(tmp_path, monkeypatch):
    folder = write_run(tmp_path / "run", overrides={"fabric.gpus": 4}, modelled=300, engines=("model",))
    monkeypatch.setattr(report, "MAX_ROWS", 100)
    monkeypatch.setattr(report, "MAX_FIGURES", 60_000)
    page = Elements(report.write(folder).read_text())
    assert "the first 25 of each point" in page.words
    assert "Nothing was measured" in page.words
    assert len(links(page)["model-0-base.csv"].splitlines()) == 26
    assert "run-fabric" in page.words.partition("are also: ")[2]


def test_the_report_warns_of_drops_a_slow_machine_and_a_model_that_does_not_hold(tmp_path, page):
    warnings = ("lost in a network that should lose none", "too slow", "measured times differ from the model's")
    assert not any(words in page.words for words in warnings)
    faulty = {"drops": 1, "late": True, "off": 0.05}
    folder = write_run(tmp_path / "run", overrides={"fabric.gpus": 4}, modelled=4, emulated=4, **faulty)
    page = Elements(report.write(folder).read_text())
    assert ("p", {"class": "warning"}) in page.found
    assert all(words in page.words for words in warnings[:2])
    svg = (folder / "figures" / "run-fidelity.svg").read_text()
    assert "packets dropped" in svg and "machine too slow" in svg
    folder = write_run(tmp_path / "far", overrides={"fabric.gpus": 4}, modelled=4, emulated=4, off=0.05)
    assert warnings[2] in Elements(report.write(folder).read_text()).words


def test_an_unfinished_run_is_reported_up_to_its_last_stored_collective(tmp_path):
    """As a power failure leaves it: parts in place of tables, and one mode further than the others."""
    shorter = dict.fromkeys(["ccl", "wan", "joint"], 25)
    overrides = {"fabric.gpus": 4}
    folder = write_run(tmp_path / "run", overrides=overrides, modelled=50, engines=("model",), unfinished=shorter)
    page = Elements(report.write(folder).read_text())
    assert "This run is not finished" in page.words
    assert {len(links(page)[f"model-0-{mode}.csv"].splitlines()) for mode in ("ccl", "wan", "joint")} == {26}
    assert len(links(page)["model-0-base.csv"].splitlines()) == 51
    with (folder / "figures" / "run.csv").open() as file:
        drawn = {row["mode"]: row for row in csv.DictReader(file)}
    assert {row["collectives"] for row in drawn.values()} == {"25"}  # the collectives that all modes have
    rows = load(folder)
    total_s = rows[(rows["mode"] == "base") & (rows.collective < 25)].completion_s.sum()
    assert float(drawn["base"]["total_s"]) == pytest.approx(total_s)


@pytest.mark.parametrize("size", SIZES, ids=["wide", "phone"])
def test_a_browser_renders_the_report_without_errors_overflow_or_overlapping_labels(run, tmp_path, size):
    _, errors = browser.run(tmp_path, (run / "report.html").as_uri(), size)
    assert browser.console(errors) == []
    found, asked = browser.measured(tmp_path, run / "report.html", size)
    assert asked == []
    assert found["width"] in range(size[0] - 20, size[0] + 1)  # minus a scroll bar
    assert found["wanted"] == found["width"]
    assert all(wanted <= width for width, wanted in found["tables"] if size[0] >= 1200)
    assert len(found["drawings"]) == 5
    for drawing in found["drawings"]:
        left, top, right, bottom = drawing["box"]
        assert right - left > 300
        assert bottom - top > 100
        assert len(drawing["texts"]) > 10
        for (one, *a), (other, *b) in combinations(drawing["texts"], 2) if size == SIZES[0] else ():
            across, along = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
            assert across < 2 or along < 3, (one, other)
    assert "<script>alert('label')</script>" in found["text"]
    assert all(urlsplit(address).scheme == "data" for _, address in found["links"])


def test_the_browser_helper_detects_console_errors_requests_and_overflow(tmp_path):
    """This shows that the test above can fail."""
    page = tmp_path / "bad.html"
    body = "<body><script>console.error('seen')</script><img src='asked.png'><div style='width: 3000px'>wide</div>"
    page.write_text(f"<!DOCTYPE html><title>bad</title>{body}")
    _, errors = browser.run(tmp_path, page.as_uri(), (390, 844))
    assert any("seen" in line for line in browser.console(errors))
    found, asked = browser.measured(tmp_path, page, (390, 844))
    assert found["wanted"] >= 3000 > found["width"]
    assert asked == ["/asked.png"]
