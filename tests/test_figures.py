"""Figures of stored runs: they show what is stored, a mode looks the same everywhere, and they are written safely."""

import csv
import itertools
import json
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from analysis.distribution import shares
from analysis.figures import draw
from analysis.style import MODE_STYLES, paler
from tests.stored import OFF, write_run

MODES = ["base", "ccl", "wan", "joint"]


@pytest.fixture(scope="module")
def both(tmp_path_factory) -> Path:
    """A drawn run of both engines: more collectives reckoned than measured, at two chunk sizes."""
    folder = tmp_path_factory.mktemp("runs") / "both"
    write_run(folder, overrides={"sweep.collective.chunk": ["1 MB", "2 MB"]}, modelled=600, emulated=12)
    draw(folder)
    return folder


@pytest.fixture(scope="module")
def modelled(tmp_path_factory) -> Path:
    """A drawn run of the model alone, over a WAN of routers between sites of different size."""
    folder = tmp_path_factory.mktemp("runs") / "modelled"
    overrides = {"fabric.wan": "five-router", "fabric.gpus": [2, 4], "conditions.wan_delay": "5 ms"}
    write_run(folder, overrides=overrides, modelled=40, engines=("model",))
    draw(folder)
    return folder


def data(folder: Path, name: str) -> list[dict[str, str]]:
    with (folder / "figures" / f"{name}.csv").open() as file:
        return list(csv.DictReader(file))


def rows_of(folder: Path) -> pd.DataFrame:
    return pq.read_table(folder / "collectives.parquet").to_pandas()


def test_a_run_makes_its_figures_each_as_svg_png_and_data(both, modelled):
    def found(folder):
        return {path.name for path in (folder / "figures").iterdir()}

    names = ["paper", "paper-cdf", "paper-timeline", "paper-fabric"]
    files = {f"{name}{ending}" for name in names for ending in (".svg", ".png", ".csv")} | {"paper-timeline.json"}
    assert found(modelled) == files
    assert found(both) == files | {f"paper-certificate{ending}" for ending in (".svg", ".png", ".csv")}


def test_every_svg_is_xml_that_asks_for_nothing_from_elsewhere_and_names_every_mode(both):
    for path in (both / "figures").glob("*.svg"):
        root = ET.fromstring(path.read_text())
        text = " ".join(root.itertext())
        assert all(style.label in text for style in MODE_STYLES.values()), path
        links = [value for node in root.iter() for key, value in node.attrib.items() if key.endswith("href")]
        assert all(link.startswith(("#", "data:image/png;base64,")) for link in links), path
        assert path.stat().st_size < 600_000


def test_totals_compare_the_engines_on_the_same_collectives_only(both):
    drawn, stored = data(both, "paper"), rows_of(both)
    assert {(row["engine"], int(row["collectives"])) for row in drawn} == {
        ("model", 600),  # the paper's form
        ("emulation", 12),
        ("model", 12),
    }
    assert len(drawn) == 3 * 2 * len(MODES)
    for row in drawn:
        here = stored[
            (stored.engine == row["engine"])
            & (stored["mode"] == row["mode"])
            & (stored.chunk_bytes == int(row["chunk_bytes"]))
            & (stored.collective < int(row["collectives"]))
        ]
        assert len(here) == int(row["collectives"])
        assert float(row["total_s"]) == pytest.approx(here.completion_s.sum(), rel=1e-12)
    for engine, count in (("model", 600), ("emulation", 12), ("model", 12)):
        same = [
            r for r in drawn if (r["engine"], int(r["collectives"]), r["chunk_bytes"]) == (engine, count, "1000000")
        ]
        total = {row["mode"]: float(row["total_s"]) for row in same}
        assert {row["mode"]: float(row["gain"]) for row in same} == pytest.approx(
            {mode: 1 - total[mode] / total["base"] for mode in MODES}
        )


def test_where_both_engines_have_as_many_collectives_there_is_one_panel(tmp_path):
    draw(write_run(tmp_path / "run", overrides={"fabric.gpus": 4}, modelled=10, emulated=10))
    drawn = data(tmp_path / "run", "paper")
    assert {(row["engine"], row["collectives"]) for row in drawn} == {("model", "10"), ("emulation", "10")}
    assert len(drawn) == 2 * len(MODES)


def test_a_distribution_holds_every_measured_time_and_the_ends_of_the_modelled(both):
    drawn, stored = data(both, "paper-cdf"), rows_of(both)
    for (engine, mode, chunk), here in stored.groupby(["engine", "mode", "chunk_bytes"]):
        curve = [
            (float(row["completion_s"]), float(row["share"]))
            for row in drawn
            if (row["engine"], row["mode"], int(row["chunk_bytes"])) == (engine, mode, chunk)
        ]
        times = np.sort(here.completion_s)
        assert curve == sorted(curve)
        assert curve[-1] == (times[-1], 1)
        for time_s, share in curve:
            assert (times <= time_s).mean() == pytest.approx(share, abs=1 / len(times))
        if engine == "emulation":
            assert [time_s for time_s, _ in curve] == times.tolist()


def test_shares_of_a_short_series_are_exact_and_of_a_long_one_its_quantiles():
    times, share = shares(np.array([3.0, 1.0, 2.0]))
    assert (times.tolist(), share.tolist()) == ([1, 2, 3], [1 / 3, 2 / 3, 1])
    times, share = shares(np.arange(1, 100_001) / 100_000)
    assert times == pytest.approx(share)
    assert len(times) < 1000


def test_the_certificate_holds_every_measured_collective(both):
    drawn = data(both, "paper-certificate")
    stored = rows_of(both)
    measured = stored[stored.engine == "emulation"]
    key = ["setting", "mode", "collective"]
    expected = {tuple(row[key]): row.completion_s / row.predicted_s for _, row in measured.iterrows()}
    found = {(int(r["setting"]), r["mode"], int(r["collective"])): float(r["ratio"]) for r in drawn}
    assert found == pytest.approx(expected)
    assert all(1 <= ratio <= 1 + OFF for ratio in found.values())
    assert "96 collectives measured" in (both / "figures" / "paper-certificate.svg").read_text()


def test_drawing_again_gives_the_same_bytes_and_leaves_other_files_alone(both):
    folder = both / "figures"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    (folder / "mine.txt").write_text("kept")
    (folder / "paper.svg").write_text("an old figure")
    draw(both)
    (folder / "mine.txt").unlink()
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_several_axes_make_a_figure_for_each_value_of_the_shorter(tmp_path):
    overrides = {"sweep.fabric.gpus": [4, 6], "sweep.collective.chunk": ["1 MB", "2 MB", "3 MB"]}
    draw(write_run(tmp_path / "run", overrides=overrides, modelled=10, engines=("model",)))
    names = {path.stem for path in (tmp_path / "run" / "figures").glob("*.svg")}
    assert names == {"paper-4", "paper-6", "paper-4-cdf", "paper-6-cdf", "paper-timeline", "paper-fabric"}
    assert {row["chunk_bytes"] for row in data(tmp_path / "run", "paper-4")} == {"1000000", "2000000", "3000000"}


def test_words_of_a_file_are_words_and_its_name_stays_in_the_folder(tmp_path):
    run = write_run(tmp_path / "run", overrides={"fabric.gpus": 4}, modelled=6, emulated=6)
    settings = json.loads((run / "settings.json").read_text())
    settings[0]["label"] = "$\\frac{<b>&$"
    (run / "settings.json").write_text(json.dumps(settings))
    provenance = json.loads((run / "provenance.json").read_text())
    (run / "provenance.json").write_text(json.dumps(provenance | {"name": "../../out of/here"}))
    files = draw(run)
    assert {path.parent for path in files} == {run / "figures"}
    assert any(
        "$\\frac{<b>&$" in "".join(ET.fromstring(path.read_text()).itertext())
        for path in files
        if path.suffix == ".svg"
    )


def command(*arguments: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "analysis.figures", *map(str, arguments)], capture_output=True, text=True, timeout=120
    )


def test_the_command_says_what_it_wrote_and_draws_the_collective_asked_for(tmp_path):
    run = write_run(tmp_path / "run", overrides={"fabric.gpus": 4}, modelled=8, emulated=4)
    ended = command(run, "--collective", 3)
    assert ended.returncode == 0, ended.stderr
    assert sorted(ended.stdout.splitlines()) == sorted(str(path) for path in (run / "figures").iterdir())
    assert {row["collective"] for row in data(run, "paper-timeline")} == {"3"}
    ended = command(run, "--collective", 800)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "no collective 800" in ended.stderr


@pytest.mark.parametrize("module", ["figures", "report"])
@pytest.mark.parametrize("after_s", [0, 0.2, 0.5])
def test_ctrl_c_is_status_130_and_no_traceback(both, module, after_s):
    command = [sys.executable, "-m", f"analysis.{module}", str(both)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as drawing:
        maps = Path(f"/proc/{drawing.pid}/maps")
        until = time.monotonic() + 60
        while "numpy" not in maps.read_text() and time.monotonic() < until:
            time.sleep(0.01)
        assert "numpy" in maps.read_text()
        time.sleep(after_s)
        drawing.send_signal(signal.SIGINT)
        _, said = drawing.communicate(timeout=60)
    assert drawing.returncode == 130
    assert "Traceback" not in said


def test_what_is_no_run_or_cannot_be_written_is_told_in_one_sentence(tmp_path):
    run = write_run(tmp_path / "run", overrides={"fabric.gpus": 4}, modelled=8, emulated=4)
    shutil.copytree(run, tmp_path / "lacking")
    settings = json.loads((run / "settings.json").read_text())
    del settings[0]["values"]["run.seed"]
    (tmp_path / "lacking" / "settings.json").write_text(json.dumps(settings))
    shutil.copytree(run, tmp_path / "taken")
    (tmp_path / "taken" / "figures").write_text("a file")
    (tmp_path / "empty").mkdir()
    for name, status, words in (
        ("nowhere", 2, "nowhere"),
        ("empty", 2, "no run folder"),
        ("lacking", 1, "run.seed"),
        ("taken", 1, "figures"),
    ):
        ended = command(tmp_path / name)
        assert (ended.returncode, ended.stdout) == (status, ""), (name, ended.stderr)
        assert len(ended.stderr.splitlines()) == 1, ended.stderr
        assert words in ended.stderr


MACHADO = {  # Machado, Oliveira and Fernandes (2009), severity 1, on linear RGB
    "normal": np.eye(3),
    "protanopia": np.array([[0.1523, 1.0526, -0.2049], [0.1145, 0.7863, 0.0992], [-0.0039, -0.0481, 1.0520]]),
    "deuteranopia": np.array([[0.3673, 0.8606, -0.2280], [0.2801, 0.6725, 0.0474], [-0.0118, 0.0429, 0.9689]]),
    "tritanopia": np.array([[1.2555, -0.0767, -0.1788], [-0.0784, 0.9308, 0.1476], [0.0047, 0.6914, 0.3039]]),
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def lab(colour: str, seen: str) -> np.ndarray:
    """A colour in CIE L*a*b* as it is seen."""
    channels = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    white = TO_XYZ @ np.ones(3)
    x, y, z = np.cbrt(np.maximum(TO_XYZ @ np.clip(MACHADO[seen] @ linear, 0, 1) / white, 1e-4))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def test_modes_are_told_apart_in_grey_and_with_any_colour_vision():
    assert list(MODE_STYLES) == MODES
    for look in (lambda colour: colour, paler):
        least = 12 if look is not paler else 6
        colours = [look(style.colour) for style in MODE_STYLES.values()]
        for one, other in itertools.combinations(colours, 2):
            assert abs(lab(one, "normal")[0] - lab(other, "normal")[0]) > least  # lightness, all that is left in grey
            for seen in MACHADO:
                assert np.linalg.norm(lab(one, seen) - lab(other, seen)) > least * 1.3, (one, other, seen)
    for part in ("marker", "hatch", "label"):
        assert len({getattr(style, part) for style in MODE_STYLES.values()}) == len(MODES)
