"""Figures of stored runs: they show the stored rows, every mode has one style, and files are written safely."""

import csv
import itertools
import json
import math
import os
import re
import shutil
import signal
import xml.etree.ElementTree as ET
from collections import defaultdict
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from matplotlib.colors import to_hex

from analysis.figures import __main__ as figures
from analysis.figures.__main__ import draw, main
from analysis.figures.fabric import NODE, Curves, positions
from analysis.figures.output import balanced, canvas
from analysis.figures.run_points import Configuration, groups_of
from analysis.figures.style import MODE_STYLES, paler
from analysis.report.__main__ import write
from scenarios.api import plot
from tests.fakes.stored import OFF, write_run
from topologies.fabric.fabric import FabricSpec, build_fabric
from topologies.fabric.wan import WanSpec

MODES = ["base", "ccl", "wan", "joint"]


@pytest.fixture(scope="module")
def both(tmp_path_factory) -> Path:
    """A drawn run of both engines with more predicted than measured collectives, at two chunk sizes."""
    folder = tmp_path_factory.mktemp("runs") / "both"
    write_run(folder, overrides={"sweep.collective.chunk": ["1 MB", "2 MB"]}, modelled=600, emulated=12)
    draw(folder)
    return folder


@pytest.fixture(scope="module")
def modelled(tmp_path_factory) -> Path:
    """A drawn run of the timing model alone, over a five-router WAN between sites of different sizes."""
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


def test_every_figure_of_a_run_is_written_as_svg_png_and_csv(both, modelled):
    def found(folder):
        return {path.name for path in (folder / "figures").iterdir()}

    names = ["run", "run-cdf", "run-timeline", "run-fabric"]
    files = {f"{name}{ending}" for name in names for ending in (".svg", ".png", ".csv")} | {"run-timeline.json"}
    assert found(modelled) == files
    assert found(both) == files | {f"run-fidelity{ending}" for ending in (".svg", ".png", ".csv")}


def test_every_svg_is_valid_xml_that_loads_nothing_external_and_labels_every_mode(both):
    for path in (both / "figures").glob("*.svg"):
        root = ET.fromstring(path.read_text())
        text = " ".join(root.itertext())
        assert all(style.label in text for style in MODE_STYLES.values()), path
        links = [value for node in root.iter() for key, value in node.attrib.items() if key.endswith("href")]
        assert all(link.startswith(("#", "data:image/png;base64,")) for link in links), path
        assert path.stat().st_size < 600_000


@pytest.mark.parametrize("kind", ["comparison", "cdf"])
def test_every_colour_of_a_legend_is_one_of_the_figure(both, kind):
    """A grey that stands for bars, or lines, of any colour looks like one of them, or like none."""
    figure = plot(both, kind)
    drawn = {
        to_hex(colour)
        for axes in figure.axes
        for artist in (*axes.patches, *axes.lines)
        for colour in ([artist.get_facecolor()] if hasattr(artist, "get_facecolor") else [artist.get_color()])
    }
    (legend,) = figure.legends
    shown = legend.legend_handles
    colours = {to_hex(one.get_facecolor() if hasattr(one, "get_facecolor") else one.get_color()) for one in shown}
    assert colours and colours <= drawn and len(colours) == len(shown)
    assert "measured" in legend.get_title().get_text() and "predicted" in legend.get_title().get_text()


def test_means_and_gains_compare_engines_and_modes_over_the_same_collectives(both):
    drawn, stored = data(both, "run"), rows_of(both)
    assert {(row["engine"], int(row["collectives"])) for row in drawn} == {
        ("model", 600),  # the paper's form
        ("emulation", 12),
        ("model", 12),
    }
    assert len(drawn) == 3 * 2 * len(MODES)
    points = stored.groupby(["engine", "mode", "chunk_bytes"])
    for row in drawn:
        key = row["engine"], row["mode"], int(row["chunk_bytes"])
        here = points.get_group(key)[lambda rows: rows.collective < int(row["collectives"])]  # noqa: B023
        assert len(here) == int(row["collectives"])
        assert float(row["total_s"]) == pytest.approx(here.completion_s.sum(), rel=1e-12)
        assert float(row["mean_s"]) == pytest.approx(here.completion_s.mean(), rel=1e-12)
    for engine, count in (("model", 600), ("emulation", 12), ("model", 12)):
        same = [
            r for r in drawn if (r["engine"], int(r["collectives"]), r["chunk_bytes"]) == (engine, count, "1000000")
        ]
        total = {row["mode"]: float(row["total_s"]) for row in same}
        gains = {row["mode"]: row["gain"] for row in same}
        assert gains.pop("base") == ""  # the baseline itself
        assert {mode: float(text) for mode, text in gains.items()} == pytest.approx(
            {mode: 1 - total[mode] / total["base"] for mode in MODES if mode != "base"}
        )


def test_the_cdf_shows_every_measured_time_and_a_thinned_model_curve_up_to_its_maximum(both):
    drawn, stored = data(both, "run-cdf"), rows_of(both)
    for (engine, mode, chunk), here in stored.groupby(["engine", "mode", "chunk_bytes"]):
        curve = [
            (float(row["completion_s"]), float(row["share"]))
            for row in drawn
            if (row["engine"], row["mode"], int(row["chunk_bytes"])) == (engine, mode, chunk)
        ]
        times = np.sort(here.completion_s)
        assert curve == sorted(curve)
        assert curve[-1] == (times[-1], 1)
        assert len(curve) < 1000
        for time_s, share in curve:
            assert (times <= time_s).mean() == pytest.approx(share, abs=1 / len(times))
        if engine == "emulation":
            assert [time_s for time_s, _ in curve] == times.tolist()


def test_the_fidelity_figure_shows_the_ratio_of_every_measured_collective(both):
    drawn = data(both, "run-fidelity")
    stored = rows_of(both)
    measured = stored[stored.engine == "emulation"]
    key = ["setting", "mode", "collective"]
    expected = {tuple(row[key]): row.completion_s / row.predicted_s for _, row in measured.iterrows()}
    found = {(int(r["setting"]), r["mode"], int(r["collective"])): float(r["ratio"]) for r in drawn}
    assert found == pytest.approx(expected)
    assert all(1 <= ratio <= 1 + OFF for ratio in found.values())
    assert "96 collectives" in (both / "figures" / "run-fidelity.svg").read_text()


def test_redrawing_gives_identical_files_and_keeps_files_that_are_not_figures(both):
    folder = both / "figures"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    (folder / "mine.txt").write_text("kept")
    (folder / "run.svg").write_text("an old figure")
    draw(both)
    (folder / "mine.txt").unlink()
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_second_swept_key_gives_panels_and_a_third_gives_one_figure_per_value(tmp_path):
    sweep = {"sweep.fabric.gpus": [4, 6], "sweep.collective.chunk": ["1 MB", "2 MB", "3 MB"]}
    overrides = sweep | {"sweep.conditions.sampler": ["uniform", "gaussian"]}
    draw(write_run(tmp_path / "run", overrides=overrides, modelled=10, engines=("model",)))
    names = {path.stem for path in (tmp_path / "run" / "figures").glob("*.svg")}
    kinds = {f"run-sampler-{name}{end}" for name in ("uniform", "gaussian") for end in ("", "-cdf")}
    assert names == {*kinds, "run-timeline", "run-fabric"}
    drawn = {(row["gpus"], row["chunk_bytes"]) for row in data(tmp_path / "run", "run-sampler-uniform")}
    assert drawn == {(gpus, f"{chunk}000000") for gpus in ("4", "6") for chunk in (1, 2, 3)}
    svg = (tmp_path / "run" / "figures" / "run-sampler-uniform.svg").read_text()
    assert all(words in svg for words in ("GPUs 4", "GPUs 6", "chunk size", "gain over base", "conditions uniform"))


def group_of(key, values):
    base = {"collective.chunk": 8_000_000, "conditions.wan_delay": 1e-5, "fabric.gpus": [4, 4]}
    about = {"label": "x", "shared_links": {}}
    every = [
        Configuration(index=i, swept={key: value}, values=base | {key: value}, **about)
        for i, value in enumerate(values)
    ]
    (found,) = groups_of(every)
    return found


@pytest.mark.parametrize(
    ("key", "values", "ticks", "is_log"),
    [
        ("collective.reembed_every", [1, 10], {"1": 1, "10": 10}, True),
        ("conditions.wan_delay", [1e-5, 1e-3], {"10 µs": 1e-5, "1 ms": 1e-3}, True),
        ("conditions.wan_rate", [[10**10] * 2, [25 * 10**9] * 2], {"10 Gbit/s": 1e10, "25 Gbit/s": 2.5e10}, False),
        ("fabric.buffer", [500_000, 1_000_000], {"500 kB": 500_000, "1 MB": 1_000_000}, False),
        ("control.delay", [0.001, 0.002], {"1 ms": 0.001, "2 ms": 0.002}, False),
        ("te.every", [0.1, 0.2], {"100 ms": 0.1, "200 ms": 0.2}, False),
        ("fabric.wan_loss", [0.0, 1e-5, 1e-3], {"0": 0, "1e-05": 1e-5, "0.001": 1e-3}, True),
        ("control.knowledge", ["oracle", "stale 1", "stale 14"], {"oracle": 0, "stale 1": 1, "stale 14": 14}, False),
        ("control.knowledge", ["stale 5 ms", "stale 1 s"], {"stale 5 ms": 0.005, "stale 1 s": 1}, True),
    ],
)
def test_a_swept_quantity_gives_a_numeric_axis_with_its_unit(key, values, ticks, is_log):
    axis = group_of(key, values).axis
    assert axis.is_numeric and axis.is_log is is_log
    assert dict(zip(axis.labels, axis.x, strict=True)) == ticks


def test_ages_from_0_far_apart_are_on_an_axis_in_the_proportions_of_a_logarithmic_one():
    """Every doubling of the age is as wide, and 0 is left of 1, so that the slope of a line is that of the gain."""
    ages = [0, 1, 2, 4, 8, 40]
    found = group_of("control.knowledge", ["oracle", *(f"stale {age}" for age in ages[1:])])
    assert found.axis.x == tuple(ages)
    with canvas(5.6, 3) as figure:
        axes = figure.subplots()
        axes.plot(found.axis.x, ages)
        found.axis.draw(axes, inches=5.6)
        figure.draw_without_rendering()
        at = [axes.transData.transform((age, 0))[0] for age in ages]
        assert [label.get_text() for label in axes.get_xticklabels()] == [str(age) for age in ages]
    doubling = at[2] - at[1]
    assert [at[3] - at[2], at[4] - at[3]] == pytest.approx([doubling] * 2)
    assert (at[5] - at[4]) / doubling == pytest.approx(math.log2(5))
    assert at[1] - at[0] == pytest.approx(doubling, rel=0.1)
    assert at[0] - axes.bbox.x0 == pytest.approx(axes.bbox.x1 - at[-1]) and at[0] - axes.bbox.x0 < doubling / 2


@pytest.mark.parametrize(
    ("key", "values", "labels"),
    [
        ("fabric.gpus", [[4, 4], [3, 5]], ("8", "3+5")),
        ("conditions.sampler", ["uniform", "markov"], ("uniform", "markov")),
        ("run.seed", [1, 2, 100], ("1", "2", "100")),
        ("fabric.hash_seed", [1, 2, 100], ("1", "2", "100")),
        ("control.counted", [False, True], ("false", "true")),
        ("control.knowledge", ["oracle", "mean", "stale 5"], ("oracle", "mean", "stale 5")),
        ("control.knowledge", ["stale 1", "stale 5 ms"], ("stale 1", "stale 5 ms")),  # collectives, and a time
        ("conditions.wan_rate", [[10**10] * 2, [10**9, 10**10]], ("10 Gbit/s", "1-10 Gbit/s")),
        ("te.every", [1, 0.1], ("1", "100 ms")),  # a collective, and a time
        ("collective.pieces", [None, 4], ("chosen", "4")),
    ],
)
def test_values_that_are_no_quantities_are_equally_far_apart(key, values, labels):
    axis = group_of(key, values).axis
    assert not axis.is_numeric and not axis.is_log
    assert (axis.labels, axis.x) == (labels, tuple(range(len(values))))


def test_a_swept_key_is_named_in_words_below_its_axis():
    assert group_of("collective.reembed_every", [1, 10]).x_label == "collectives per embedding"
    assert group_of("fabric.hash_seed", [1, 10]).x_label == "seed of the hash"
    assert group_of("training.chunks", [1, 10]).x_label == "chunks"


@pytest.mark.parametrize("key", ["fabric.hash_seed"])
def test_no_line_joins_seeds(tmp_path, key):
    """Seeds are names: in every figure with an axis of them, each stands alone."""
    overrides = {f"sweep.{key}": [1, 2, 100], "collective.budget": "20 ms", "run.modes": ["base", "wan"]}
    overrides |= {"fabric.routing": "ecmp", "fabric.border_routers": 2}
    run = write_run(tmp_path / "run", overrides=overrides, modelled=60, engines=("model",))
    for kind in ("comparison", "budget"):
        for axes in plot(run, kind).axes:
            assert axes.get_xscale() == "linear"
            swept = [line for line in axes.lines if len(line.get_xdata()) > 2]
            assert all(line.get_linestyle() == "None" for line in swept), (kind, swept)


def algorithms_by_size(folder, algorithms, sizes, *, modelled=80, modes=("base",), **options):
    overrides = {"collective.kind": "allreduce", "sweep.collective.algorithm": algorithms, "run.modes": list(modes)}
    return write_run(folder, overrides=overrides | {"sweep.collective.size": sizes}, modelled=modelled, **options)


def test_gains_of_the_best_are_told_apart_where_others_take_several_times_as_long(tmp_path):
    """The 128 MB of halving-doubling cross a slow WAN more often than those of the ring."""
    names = ["ring", "halving-doubling", "hierarchical", "hierarchical-direct"]
    overrides = {"collective.kind": "allreduce", "run.modes": ["base"], "conditions.wan_rate": "25 Gbit/s"}
    overrides |= {"fabric.gpus": 12, "conditions.wan_delay": "20 ms"}
    swept = {"sweep.collective.algorithm": names, "sweep.collective.size": ["100 kB", "16 MB", "128 MB"]}
    run = write_run(tmp_path / "run", overrides=overrides | swept, modelled=20, engines=("model",))
    figure, means_s = plot(run), rows_of(run).groupby(["collective.algorithm", "collective.size"]).completion_s.mean()
    assert means_s["halving-doubling", 128e6] > 2.1 * means_s["ring", 128e6]
    gains = figure.axes[1]
    best = max(100 * (1 - means_s[name, 128e6] / means_s["ring", 128e6]) for name in names)
    assert best > 0 and gains.get_ylim()[0] == -105 and best < gains.get_ylim()[1] < 150
    assert "not drawn: gains under −100 %" in figure.legends[0].get_title().get_text().replace("\n", " ")
    figure.draw_without_rendering()
    right = max(label.get_window_extent().x1 for label in gains.get_xticklabels())
    assert right <= gains.get_window_extent().x1
    without = plot(algorithms_by_size(tmp_path / "near", names[:1] + names[2:], ["1 MB", "2 MB"], engines=("model",)))
    assert "not drawn" not in without.legends[0].get_title().get_text()


def test_compared_algorithms_are_lines_in_one_panel_above_their_gains(tmp_path):
    """Which algorithm is fastest at which size, and by how much, is seen in one panel, with units."""
    sizes = {"100 kB": 1e5, "1 MB": 1e6, "64 MB": 64e6}
    run = algorithms_by_size(tmp_path / "run", ["ring", "hierarchical", "direct"], [*sizes], engines=("model",))
    figure = plot(run)
    times, gains = figure.axes
    assert (times.get_ylabel(), gains.get_ylabel()) == ("mean time (ms)", "gain over ring (%)")
    assert [label.get_text() for label in gains.get_xticklabels()] == [*sizes]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["ring", "hierarchical", "direct"]
    assert "mode base" in times.get_title()
    stored = rows_of(run).groupby(["collective.algorithm", "collective.size"]).completion_s.mean()
    drawn = [line for line in times.lines if len(line.get_xdata()) == 3]
    for line, name in zip(drawn, ("ring", "hierarchical", "direct"), strict=True):
        assert line.get_xdata().tolist() == [*sizes.values()]
        assert line.get_ydata() == pytest.approx([1e3 * stored[name, size] for size in sizes.values()])
    assert len({(line.get_color(), line.get_marker()) for line in drawn}) == 3
    gained = [line for line in gains.lines if len(line.get_xdata()) == 3]
    for line, name in zip(gained, ("hierarchical", "direct"), strict=True):
        expected = [100 * (1 - stored[name, size] / stored["ring", size]) for size in sizes.values()]
        assert line.get_ydata() == pytest.approx(expected)
    lower, upper = gains.get_ylim()
    assert len([tick for tick in gains.get_yticks() if lower <= tick <= upper]) >= 2


def test_alternatives_that_take_the_same_times_are_all_seen_and_gain_nothing(tmp_path):
    """Congestion control has no effect in the model: four lines on each other, and gains of 0."""
    overrides = {"run.modes": ["base"], "fabric.gpus": 4, "transport.queue": "fifo", "fabric.buffer": "1 GB"}
    overrides |= {"sweep.transport.congestion_control": ["cubic", "reno", "bbr"]}
    overrides |= {"sweep.conditions.wan_delay": ["1 ms", "5 ms"]}
    figure = plot(write_run(tmp_path / "run", overrides=overrides, modelled=20, engines=("model",)))
    times, gains = figure.axes
    widths = [line.get_linewidth() for line in times.lines if len(line.get_xdata()) == 2]
    assert len({*widths}) == 3 and widths == sorted(widths, reverse=True)
    assert not any(artist.get_visible() for artist in (*gains.lines, *gains.texts, *gains.collections))
    assert "no gains: no time differs from that of congestion control cubic" in figure.legends[0].get_title().get_text()


def test_the_age_of_knowledge_is_an_axis_of_numbers_beside_a_second_key(tmp_path):
    """Eight ages at two routings: a panel for each routing, and not one for each of sixteen points."""
    ages = [0, 1, 2, 3, 4, 6, 9, 14]
    knowledge = ["oracle", *(f"stale {age}" for age in ages[1:])]
    overrides = {"run.modes": ["base", "wan"], "conditions.sampler": "markov", "sweep.control.knowledge": knowledge}
    overrides |= {"sweep.fabric.routing": ["single", "ecmp"]}
    run = write_run(tmp_path / "run", overrides=overrides, modelled=60, engines=("model",))
    figure = plot(run)
    assert len(figure.axes) == 4 and figure.axes[-1].get_xlabel() == "age of the known rates (collectives)"
    assert [label.get_text() for label in figure.axes[-1].get_xticklabels()] == [str(age) for age in ages]
    stored = rows_of(run).groupby(["fabric.routing", "mode", "control.knowledge"]).completion_s.mean()
    for axes, routing in zip(figure.axes[:2], ("single", "ecmp"), strict=True):
        (wan,) = (line for line in axes.lines if line.get_marker() == MODE_STYLES["wan"].marker)
        assert wan.get_xdata().tolist() == ages
        assert wan.get_ydata() == pytest.approx([1e3 * stored[routing, "wan", name] for name in knowledge])


def test_bars_of_algorithms_are_named_as_such_and_each_gain_stands_at_its_own_marker(tmp_path):
    run = algorithms_by_size(tmp_path / "run", ["ring", "hierarchical"], ["32 MB"], modelled=4, emulated=4)
    (_, gains) = (figure := plot(run)).axes[-2:]
    assert gains.get_xlabel() == "algorithm"
    markers = sorted(tuple(line.get_xydata()[0]) for line in gains.lines if line.get_marker() not in ("None", "_"))
    labels = sorted((text.xy[0], float(text.get_text().rstrip(" %").replace("−", "-"))) for text in gains.texts)
    assert len(labels) == len(markers) == 2 and figure.legends
    for (x, gain), (at, words) in zip(markers, labels, strict=True):
        assert x == pytest.approx(at) and gain == pytest.approx(words, abs=0.051)


def test_no_title_has_a_word_left_over_and_a_number_keeps_its_unit():
    text = "8 GPUs, chunks of 2 MB, WAN links of 10 µs, WAN 10-100 Gbit/s, 20-200 Gbit/s within sites, mean stay 6.0"
    for room in range(16, len(text) + 1):
        lines = balanced(text, room).splitlines()
        assert " ".join(lines) == text and max(map(len, lines)) <= room
        assert min(map(len, lines)) >= 0.4 * max(map(len, lines))
        assert not any(line.startswith(("MB", "µs", "Gbit/s", "6.0")) for line in lines)


def test_the_wan_has_its_delay_and_its_rate_in_one_place_of_a_title(tmp_path):
    overrides = {"run.modes": ["base"], "conditions.wan_delay": "5 ms"}
    title = plot(write_run(tmp_path / "run", overrides=overrides, modelled=4, engines=("model",))).get_suptitle()
    assert "WAN links of 5 ms and 10-100 Gbit/s" in title.replace("\n", " ") and title.count("WAN") == 1


def test_a_round_of_jobs_without_blocks_of_its_own_is_not_titled_with_blocks(tmp_path):
    training = {"name": "train", "kind": "training", "ranks": [0, 1, 4, 5]}
    gather = {"name": "gather", "kind": "allgather", "size": "64 MB", "ranks": [2, 3, 6, 7]}
    overrides = {"run.modes": ["base"], "training.micro_batches": 2, "training.forward": "1 ms"}
    overrides |= {"training.backward": "2 ms", "training.gradient_size": "8 MB"}
    for jobs, has_blocks in ((["train"], False), (["train", "gather"], False), (["train", "other"], True)):
        named = {"train": training, "gather": gather, "other": {**gather, "name": "other"} | {"size": None}}
        tables = [{key: value for key, value in named[one].items() if value is not None} for one in jobs]
        folder = tmp_path / "-".join(jobs)
        run = write_run(folder, overrides=overrides | {"job": tables}, modelled=3, engines=("model",))
        assert ("blocks of" in plot(run).get_suptitle().replace("\n", " ")) is has_blocks


@pytest.mark.parametrize("kind", ["comparison", "cdf", "fabric", "over_time", "job_times"])
def test_notes_and_legends_have_5_points_in_a_column_of_a_paper(tmp_path, kind):
    jobs = [{"name": name, "ranks": ranks} for name, ranks in (("a", [0, 4]), ("b", [1, 5]))]
    overrides = {"run.modes": ["base", "joint"], "conditions.sampler": "markov"}
    overrides |= {"job": jobs} if kind == "job_times" else {}
    figure = plot(write_run(tmp_path / "run", overrides=overrides, modelled=30, emulated=5), kind)
    width = figure.get_figwidth()
    shrink = (3.3 if width <= 7.2 else 7.2) / width
    texts = [text for legend in figure.legends for text in (*legend.get_texts(), legend.get_title())]
    sizes = [one.get_fontsize() for one in [*texts, figure._supxlabel or figure._suptitle] if one.get_text()]
    assert min(sizes) * shrink >= 4.99 and (kind in ("comparison", "job_times") or width <= 7.2)


def test_several_jobs_of_a_name_have_one_label_and_bars_have_their_means(tmp_path):
    many = [{"name": f"gather{number}", "ranks": [2, 6], "size": "8 MB"} for number in range(5)]
    train = {"name": "train", "ranks": [0, 4], "size": "32 MB"}
    overrides = {"sweep.job": [[train], [train, *many]], "run.modes": ["base"]}
    run = write_run(tmp_path / "run", overrides=overrides, modelled=5, engines=("model",))
    assert [tick.get_text().replace("\n", " ") for tick in plot(run).axes[-1].get_xticklabels()] == [
        "train alone",
        "train + gather0-4",
    ]
    stored = pq.read_table(run / "jobs.parquet").to_pandas().groupby(["job", "setting"]).completion_s.mean()
    train_panel = plot(run, "job_times").axes[0]
    means_ms = [float(text.get_text().replace(",", "")) for text in train_panel.texts]
    assert means_ms == pytest.approx([1e3 * stored["train", setting] for setting in (0, 1)], rel=1e-3)


def test_several_modes_keep_their_lines_and_algorithms_have_panels(tmp_path):
    run = algorithms_by_size(
        tmp_path / "run", ["ring", "direct"], ["1 MB", "64 MB"], modes=("base", "joint"), engines=("model",)
    )
    figure = plot(run)
    assert len(figure.axes) == 4
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == [MODE_STYLES["base"].label, MODE_STYLES["joint"].label]


def test_every_panel_of_gains_has_axes(tmp_path):
    """Eight values of a second key have two rows of panels."""
    eight = [1, 2, 3, 4, 5, 6, 7, 8]
    overrides = {"run.modes": ["base", "wan"], "fabric.gpus": 2}
    overrides |= {"sweep.conditions.wan_delay": [f"{ms} ms" for ms in eight]}
    overrides |= {"sweep.collective.chunk": [f"{size} MB" for size in eight]}
    figure = plot(write_run(tmp_path / "run", overrides=overrides, modelled=6, engines=("model",)))
    figure.draw_without_rendering()
    left, *others = [axes for axes in figure.axes if axes.get_ylabel().startswith("gain over")]
    assert any(label.get_visible() and label.get_text() for label in left.get_yticklabels())
    assert len(others) == 1 and len(figure.axes) == 2 * 8  # the first panels of two rows
    assert all(axes.spines[side].get_visible() for axes in figure.axes for side in ("bottom", "left"))
    bottoms = [label.get_window_extent().y1 for axes in figure.axes[4:8] for label in axes.get_xticklabels()]
    assert max(bottoms) - min(bottoms) < 1


def test_the_words_of_a_long_baseline_stay_beside_their_own_panel(tmp_path):
    overrides = {"collective.kind": "broadcast", "run.modes": ["base"], "fabric.gpus": 4}
    overrides |= {"sweep.collective.algorithm": ["double-tree", "chain"], "sweep.collective.pieces": [16, 64]}
    overrides |= {"sweep.collective.size": ["1 MB", "2 MB"]}
    figure = plot(write_run(tmp_path / "run", overrides=overrides, modelled=20, engines=("model",)))
    figure.draw_without_rendering()
    labelled = [axes for axes in figure.axes if axes.get_ylabel()]
    assert len(labelled) == 2
    for axes in labelled:
        box, panel = axes.yaxis.label.get_window_extent(), axes.get_window_extent()
        assert panel.y0 <= box.y0 and box.y1 <= panel.y1


def test_markup_and_paths_in_stored_text_are_drawn_as_text_and_never_leave_the_folder(tmp_path):
    run = write_run(tmp_path / "run", overrides={"fabric.gpus": 4}, modelled=6, engines=("model",))
    for name, old, new in (("settings", "4 GPUs", "$\\\\frac{<b>&$"), ("provenance", '"run"', '"../../out of/here"')):
        path = run / f"{name}.json"
        path.write_text(path.read_text().replace(old, new))
    files = draw(run)
    assert {path.parent for path in files} == {run / "figures"}
    texts = ["".join(ET.fromstring(path.read_text()).itertext()) for path in files if path.suffix == ".svg"]
    assert any("$\\frac{<b>&$" in text for text in texts)


def test_the_figures_command_prints_written_files_and_draws_the_given_collective(tmp_path, capsys):
    run = write_run(tmp_path / "run", overrides={"fabric.gpus": 4}, modelled=8, emulated=4)
    assert main([str(run), "--collective", "3"]) == 0
    assert sorted(capsys.readouterr().out.splitlines()) == sorted(str(path) for path in (run / "figures").iterdir())
    assert {row["collective"] for row in data(run, "run-timeline")} == {"3"}
    assert main([str(run), "--collective", "800"]) == 1
    out, err = capsys.readouterr()
    assert out == "" and "no collective 800" in err


@pytest.mark.parametrize(
    ("name", "status", "words"),
    [("nowhere", 2, "nowhere"), ("empty", 2, "not a run folder"), ("lacking", 1, "run.seed"), ("taken", 1, "figures")],
)
def test_a_run_that_cannot_be_drawn_or_written_gives_one_error_line_and_a_status(tmp_path, capsys, name, status, words):
    run = write_run(tmp_path / "lacking", overrides={"fabric.gpus": 4}, modelled=4, engines=("model",))
    shutil.copytree(run, tmp_path / "taken")
    (tmp_path / "taken" / "figures").write_text("a file")
    (tmp_path / "empty").mkdir()
    settings = json.loads((run / "settings.json").read_text())
    del settings[0]["values"]["run.seed"]
    (run / "settings.json").write_text(json.dumps(settings))
    assert main([str(tmp_path / name)]) == status
    out, err = capsys.readouterr()
    assert out == "" and words in err and len(err.splitlines()) == 1


def test_a_drawing_process_that_is_killed_gives_one_error_sentence(both, monkeypatch, capsys):
    monkeypatch.setattr(figures.os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(figures.cdf, "picture", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    assert main([str(both)]) == 1
    assert "a drawing process ended early" in capsys.readouterr().err


def test_ctrl_c_exits_with_status_130_without_a_traceback(monkeypatch, capsys):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(figures, "draw", interrupted)
    assert figures.main(["run"]) == 130 and capsys.readouterr() == ("", "")


MACHADO = {  # Machado, Oliveira and Fernandes (2009), severity 1, on linear RGB
    "normal": np.eye(3),
    "protanopia": np.array([[0.1523, 1.0526, -0.2049], [0.1145, 0.7863, 0.0992], [-0.0039, -0.0481, 1.0520]]),
    "deuteranopia": np.array([[0.3673, 0.8606, -0.2280], [0.2801, 0.6725, 0.0474], [-0.0118, 0.0429, 0.9689]]),
    "tritanopia": np.array([[1.2555, -0.0767, -0.1788], [-0.0784, 0.9308, 0.1476], [0.0047, 0.6914, 0.3039]]),
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def lab(colour: str, seen: str) -> np.ndarray:
    """Return a colour in CIE L*a*b* as a person with this colour vision sees it."""
    channels = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    white = TO_XYZ @ np.ones(3)
    x, y, z = np.cbrt(np.maximum(TO_XYZ @ np.clip(MACHADO[seen] @ linear, 0, 1) / white, 1e-4))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def test_mode_colours_differ_in_greyscale_and_with_every_colour_vision_deficiency():
    assert list(MODE_STYLES) == MODES
    for look in (lambda colour: colour, paler):
        least = 12 if look is not paler else 6
        colours = [look(style.colour) for style in MODE_STYLES.values()]
        for one, other in itertools.combinations(colours, 2):
            assert abs(lab(one, "normal")[0] - lab(other, "normal")[0]) > least  # lightness, all that greyscale keeps
            for seen in MACHADO:
                assert np.linalg.norm(lab(one, seen) - lab(other, seen)) > least * 1.3, (one, other, seen)
    for part in ("marker", "hatch", "label"):
        assert len({getattr(style, part) for style in MODE_STYLES.values()}) == len(MODES)


def test_joint_is_the_darkest_mode_and_base_the_palest():
    lightness = [lab(MODE_STYLES[mode].colour, "normal")[0] for mode in MODES]
    assert lightness == sorted(lightness, reverse=True)


def test_measured_and_predicted_times_have_one_scale_and_markers_hide_shorter_intervals(both):
    figure = plot(both)
    above = [axes for axes in figure.axes if axes.get_ylabel().startswith("mean time")]
    below = [axes for axes in figure.axes if axes.get_ylabel().startswith("gain")]
    for row in (above, below):
        assert len(row) == 2 and row[0].get_ylim() == row[1].get_ylim()
    whiskers = [one for axes in (*above, *below) for box in axes.containers if (one := box.lines[2])]
    markers = [one for axes in (*above, *below) for one in axes.lines if one.get_marker() in "os^D"]
    assert whiskers and markers
    assert max(bar.get_zorder() for bars in whiskers for bar in bars) < min(one.get_zorder() for one in markers)


@pytest.mark.parametrize(("sizes", "shared"), [(["1 MB", "2 MB"], True), (["1 MB", "64 MB"], False)])
def test_distributions_are_steps_over_one_axis_of_time_unless_their_times_differ_widely(tmp_path, sizes, shared):
    write_run(tmp_path / "run", overrides={"sweep.collective.chunk": sizes}, modelled=300, emulated=5)
    figure = plot(tmp_path / "run", "cdf")
    lines = [line for axes in figure.axes for line in axes.lines if line.get_linestyle() != "None"]
    assert lines and {line.get_drawstyle() for line in lines} == {"steps-post"}
    assert len({axes.get_xlim() for axes in figure.axes}) == (1 if shared else 2)
    for axes in figure.axes:
        assert max(line.get_xdata().max() for line in axes.lines) <= axes.get_xlim()[1]


def curves_of(figure):
    """Return the times of every curve with its colour and dashes."""
    return [
        (tuple(line.get_xdata()[1:]), line.get_color(), line.get_linestyle())
        for axes in figure.axes
        for line in axes.lines
        if line.get_drawstyle() == "steps-post"
    ]


@pytest.mark.parametrize(("periods", "panels"), [([1, 2, 5, 20], 1), ([1, 2, 3, 4, 5, 6], 6)])
def test_a_distribution_that_is_the_same_in_all_configurations_is_drawn_once(tmp_path, periods, panels):
    """The period of embeddings has no effect in base; ccl and joint have a curve for each, too many for one panel."""
    modes = ["base", "ccl"] if panels == 1 else ["base", "ccl", "joint"]
    overrides = {"sweep.collective.reembed_every": periods, "run.modes": modes, "fabric.gpus": 6}
    run = write_run(tmp_path / "run", overrides=overrides, modelled=60, engines=("model",))
    figure, stored = plot(run, "cdf"), rows_of(run)
    base_ms = 1e3 * np.sort(stored.query("mode == 'base' and setting == 0").completion_s)
    curves = [times for times, *_ in curves_of(figure)]
    assert sum(times == pytest.approx(base_ms) for times in curves) == 1
    assert len(curves) == 1 + (len(modes) - 1) * len(periods)
    assert len([axes for axes in figure.axes if axes.lines]) == panels
    (legend,) = figure.legends
    assert "the same in all" in legend.get_title().get_text() and legend.get_title().get_text().endswith(": base")
    if panels == 1:
        assert [text.get_text() for text in legend.get_texts()] == [
            MODE_STYLES["base"].label,
            *(f"ccl, reembed every {period}" for period in periods),
        ]
        looks = [look for _, *look in curves_of(figure)]
        assert len({str(look) for look in looks}) == len(looks)


def test_nine_configurations_are_five_and_four_and_a_legend_counts_those_of_its_figure(tmp_path):
    """Between 0 and the least time, more than 0.4 of the greatest, the axis of time would be empty."""
    periods = {"sweep.collective.reembed_every": [*range(1, 10)]}
    overrides = {"run.modes": ["base", "ccl"], "fabric.gpus": 6}
    overrides |= {"conditions.wan_rate": "50-60 Gbit/s", "conditions.intra_rate": "40-70 Gbit/s"}
    run = write_run(tmp_path / "run", overrides=periods | overrides, modelled=60, engines=("model",))
    draw(run)
    drawn = [{row["collective.reembed_every"] for row in data(run, f"run-cdf-{part}")} for part in (1, 2)]
    assert [len(periods) for periods in drawn] == [5, 4]
    figure, stored = plot(run, "cdf"), rows_of(run)
    assert "the same in all 5 configurations here (of 9): base" in figure.legends[0].get_title().get_text()
    least_ms, most_ms = 1e3 * stored.completion_s.min(), 1e3 * stored.completion_s.max()
    assert least_ms > 0.4 * most_ms
    left, right = figure.axes[0].get_xlim()
    assert (
        0 < least_ms - left < 0.1 * (most_ms - least_ms) and right > 1e3 * stored[stored.setting < 5].completion_s.max()
    )


def test_distributions_of_compared_algorithms_are_in_the_panel_of_their_size(tmp_path):
    sizes = {"100 kB": 1e5, "64 MB": 64e6}
    run = algorithms_by_size(tmp_path / "run", ["ring", "direct"], [*sizes], engines=("model",))
    figure, stored = plot(run, "cdf"), rows_of(run)
    assert [axes.get_title().splitlines()[0] for axes in figure.axes] == ["size 100 kB", "size 64 MB"]
    for axes, size, unit_s in zip(figure.axes, sizes.values(), (1e-3, 1e-3), strict=True):
        longest = [line.get_xdata().max() * unit_s for line in axes.lines]
        here = stored[stored["collective.size"] == size].groupby("collective.algorithm").completion_s.max()
        assert longest == pytest.approx([here["ring"], here["direct"]])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["ring", "direct"]


def test_the_timeline_of_a_measured_collective_shows_its_measured_transfers(both):
    stored = pq.read_table(both / "transfers.parquet").to_pandas()
    stored = stored[(stored.setting == 0) & (stored.collective == 0)]
    rank = {f"g{i}": i for i in range(8)}
    drawn = {
        (r["mode"], int(r["step"]), rank[r["src"]], rank[r["dst"]], int(r["chunk"])): (
            float(r["start_s"]),
            float(r["end_s"]),
        )
        for r in data(both, "run-timeline")
    }
    assert drawn == {(r["mode"], r.step, r.src, r.dst, r.chunk): (r.start_s, r.end_s) for _, r in stored.iterrows()}
    for row in data(both, "run-timeline"):
        assert row["measured"] == "True"
        on_the_way_s = 8 * 1_000_000 / float(row["rate_bps"]) + float(row["delay_s"])
        assert float(row["end_s"]) - float(row["leaves_s"]) == pytest.approx(on_the_way_s, rel=1e-4)  # stored in ns


def test_a_model_timeline_ends_at_the_predicted_time_and_follows_the_chosen_paths(modelled):
    drawn, stored = data(modelled, "run-timeline"), rows_of(modelled)
    settings = json.loads((modelled / "settings.json").read_text())
    joined = {(link["src"], link["dst"]) for link in settings[0]["fabric"]["links"]}
    for mode in MODES:
        moves = [row for row in drawn if row["mode"] == mode]
        row = stored[(stored["mode"] == mode) & (stored.collective == 0)].iloc[0]
        assert max(float(move["end_s"]) for move in moves) == pytest.approx(row.completion_s)
        assert {move["measured"] for move in moves} == {"False"}
        held = defaultdict(set)
        for move in moves:
            hops = move["via"].split(">")
            assert (hops[0], hops[-1]) == (move["src"], move["dst"])
            assert set(itertools.pairwise(hops)) <= joined
            held[move["dst"]].add(int(move["chunk"]))
        assert all(len(chunks) == 5 for chunks in held.values())  # every chunk except the GPU's own
    svg = (modelled / "figures" / "run-timeline.svg").read_text()
    assert "predicted" in svg
    assert "measured" not in svg


@pytest.mark.parametrize("kind", ["both", "modelled"])
def test_the_timeline_trace_follows_the_trace_event_format_without_overlaps(kind, request):
    folder = request.getfixturevalue(kind)
    trace = json.loads((folder / "figures" / "run-timeline.json").read_text())
    assert set(trace) == {"traceEvents", "displayTimeUnit", "otherData"}
    named, spans = set(), defaultdict(list)
    for event in trace["traceEvents"]:
        thread = event["pid"], event["tid"]
        assert all(isinstance(number, int) for number in thread) and isinstance(event["args"], dict)
        if event["ph"] == "M":
            is_name = event["name"] in ("process_name", "thread_name")
            assert isinstance(event["args"]["name" if is_name else "sort_index"], str if is_name else int)
            named.add(thread)
        else:
            assert event["ph"] == "X" and isinstance(event["cat"], str)
            assert event["ts"] >= 0 and event["dur"] > 0
            spans[thread].append((event["ts"], event["ts"] + event["dur"]))
    assert set(spans) <= named
    for events in spans.values():  # viewers drop or misdraw events that overlap in a thread
        assert all(one[1] <= other[0] + 1e-6 for one, other in itertools.pairwise(sorted(events)))
    drawn = data(folder, "run-timeline")
    assert sum(map(len, spans.values())) == len(drawn)
    assert max(end for events in spans.values() for _, end in events) == pytest.approx(
        1e6 * max(float(row["end_s"]) for row in drawn)
    )


def test_the_fabric_figure_lists_the_rate_of_every_link_and_the_ring_edges_on_it(both):
    settings, drawn = json.loads((both / "settings.json").read_text()), data(both, "run-fabric")
    conditions = pq.read_table(both / "conditions.parquet").to_pandas()
    rates = conditions[(conditions.setting == 0) & (conditions.collective == 0)].set_index("link").rate_bps
    stored = rows_of(both)
    for mode in MODES:
        links = [row for row in drawn if row["mode"] == mode]
        assert {int(row["link"]): int(row["rate_bps"]) for row in links} == rates.to_dict()
        here = (stored["mode"] == mode) & (stored.collective == 0) & (stored.setting == 0) & (stored.engine == "model")
        paths = [path for path in stored[here].iloc[0].paths if path >= 0]
        taken = {int(row["link"]) for row in links if row["kind"] == "wan" and row["edge"]}
        assert taken == {link for path in paths for link in settings[0]["fabric"]["paths"][path]["links"]}
        assert {row["edge"] for row in links} - {""} == set(map(str, range(8)))


FABRICS = {
    "mesh": FabricSpec(),
    "five-router": FabricSpec(gpus_per_site=(3, 5), wan=WanSpec(preset="five-router")),
    "16 GPUs": FabricSpec(gpus_per_site=(8, 8)),
    "four sites": FabricSpec(gpus_per_site=(3, 3, 3, 3)),
}


@pytest.mark.parametrize("spec", FABRICS.values(), ids=FABRICS)
def test_nodes_of_the_fabric_figure_overlap_neither_each_other_nor_foreign_links(spec):
    fabric = build_fabric(spec)
    placed = positions(fabric)
    assert min(math.dist(one, other) for one, other in itertools.combinations(placed.values(), 2)) > 2 * NODE
    curves = Curves(fabric, placed)
    for link in fabric.links:
        along = curves.points(link, np.linspace(0, 1, 50))
        for name, place in placed.items():
            if name not in (link.src, link.dst):
                assert np.hypot(*(along - place).T).min() > NODE, (link.name, name)


def test_the_map_shows_every_wan_link_with_its_utilisation(tmp_path):
    """Each flow of a ring carries all blocks but one. The run has a map because this WAN's routers have coordinates."""
    overrides = {"fabric.wan": "topohub:sndlib/nobel-us", "fabric.sites": ["Houston", "Seattle"]}
    write_run(tmp_path / "run", overrides={**overrides, "collective.chunk": "1 MB"}, modelled=5, emulated=2)
    assert sum(path.name == "run-map.svg" for path in draw(tmp_path / "run", collective=1)) == 1
    drawn = data(tmp_path / "run", "run-map")
    stored = rows_of(tmp_path / "run")
    settings = json.loads((tmp_path / "run" / "settings.json").read_text())
    assert len(drawn) == 4 * 2 * (21 + 4)  # modes, directions, links of the map and of four border routers
    for mode in MODES:
        row = stored[(stored["mode"] == mode) & (stored.collective == 1) & (stored.engine == "emulation")].iloc[0]
        crossed = [settings[0]["fabric"]["paths"][path]["links"] for path in row.paths if path >= 0]
        for link in (one for one in drawn if one["mode"] == mode):
            bits = 8 * 7e6 * sum(int(link["link"]) in links for links in crossed)
            share = bits / (int(link["rate_bps"]) * row.completion_s)
            assert float(link["utilisation"]) == pytest.approx(share, rel=1e-6)
            assert bool(link["flows"]) is (bits > 0)


def test_seeds_are_pooled_in_figures_of_means(tmp_path):
    """A bar for each mode, whose mean is that of all seeds' collectives, and its gain that of their totals."""
    overrides = {"sweep.run.seed": [1, 2, 100], "run.modes": ["base", "wan"]}
    run = write_run(tmp_path / "run", overrides=overrides, modelled=60, emulated=20)
    draw(run)
    rows = rows_of(run)
    for drawn in data(run, "paper"):
        here = rows[(rows["engine"] == drawn["engine"]) & (rows["collective"] < int(drawn["collectives"]) / 3)]
        base, own = (here[here["mode"] == mode].completion_s for mode in ("base", drawn["mode"]))
        assert len(own) == int(drawn["collectives"]) and len(own) % 3 == 0
        assert float(drawn["mean_s"]) == pytest.approx(own.mean())
        if drawn["mode"] == "wan":
            assert float(drawn["gain"]) == pytest.approx(1 - own.sum() / base.sum())
    assert {(row["engine"], row["collectives"]) for row in data(run, "paper")} == {
        ("model", "180"), ("model", "60"), ("emulation", "60")
    }  # fmt: skip
    assert "3 seeds" in plot(run).get_suptitle()
    distribution = [row for row in data(run, "paper-cdf") if (row["engine"], row["mode"]) == ("model", "base")]
    assert len(distribution) == 180


@pytest.mark.parametrize(
    ("overrides", "says", "size"),
    [
        ({}, "base (nothing re-chosen)", "chunks of 8 MB"),
        ({"fabric.routing": "ecmp"}, "base (nothing re-chosen, paths hashed)", "chunks of 8 MB"),
        (
            {"fabric.routing": "spray", "collective.kind": "alltoall"},
            "base (nothing re-chosen, paths sprayed)",
            "blocks of",
        ),
        ({"sweep.fabric.routing": ["single", "ecmp"]}, "base (nothing re-chosen)", "chunks of 8 MB"),
        (
            {"fabric.routing": "ecmp", "collective.size": "64 MB"},
            "base (nothing re-chosen, paths hashed)",
            "size 64 MB",
        ),
    ],
)
def test_a_comparison_tells_what_base_does_and_the_size_that_all_have(tmp_path, overrides, says, size):
    run = write_run(tmp_path / "run", overrides={"run.modes": ["base", "wan"], **overrides}, modelled=5)
    figure = plot(run)
    assert figure.legends[0].get_texts()[0].get_text() == says
    assert size in figure.get_suptitle().replace("\n", " ")


def test_seeds_of_the_hash_are_pooled_in_figures(tmp_path):
    """A bar for each mode over all hashes; a distribution has the collectives of each."""
    overrides = {"sweep.fabric.hash_seed": [1, 2, 5], "fabric.routing": "ecmp", "run.modes": ["base", "wan"]}
    run = write_run(tmp_path / "run", overrides=overrides, modelled=60)
    draw(run)
    stored = rows_of(run)
    rows = stored[stored["engine"] == "model"].groupby("mode").completion_s
    for drawn in data(run, "run")[:2]:
        assert float(drawn["mean_s"]) == pytest.approx(rows.mean()[drawn["mode"]])
    assert "3 hash seeds" in plot(run).get_suptitle().replace("\n", " ")
    distribution = [row for row in data(run, "run-cdf") if (row["engine"], row["mode"]) == ("model", "base")]
    assert len(distribution) == 180 and float(distribution[-1]["completion_s"]) == pytest.approx(rows.max()["base"])


def test_wans_of_their_own_have_ticks_of_their_own(tmp_path):
    wans = [{"links": [["s0b0", "s1b0"], ["s0b1", "s1b1"], ["s0b0", far]]} for far in ("s0b1", "s1b1")]
    run = write_run(tmp_path / "run", overrides={"sweep.fabric.wan": wans, "run.modes": ["base"]}, modelled=5)
    labels = [tick.get_text().replace("\n", " ") for tick in plot(run).axes[-1].get_xticklabels()]
    assert [one.partition(" (")[0] for one in labels] == [
        "own WAN s0b0-s1b0 s0b1-s1b1 s0b0-s0b1",
        "own WAN s0b0-s1b0 s0b1-s1b1 s0b0-s1b1",
    ]


def test_jobs_that_differ_in_their_sizes_have_ticks_of_their_own(tmp_path):
    """Otherwise bars of several configurations would stand in one place."""
    jobs = [[{"name": "a", "ranks": [0, 4]}, {"name": "b", "ranks": [1, 5], "size": size}] for size in ("1 MB", "2 MB")]
    run = write_run(tmp_path / "run", overrides={"sweep.job": jobs, "run.modes": ["base"]}, modelled=5)
    labels = [tick.get_text().replace("\n", " ") for tick in plot(run).axes[-1].get_xticklabels()]
    assert labels == ["a + b 1 MB", "a + b 2 MB"]


def test_jobs_of_several_configurations_with_one_mode_stand_side_by_side(tmp_path):
    """A panel for each job, with a bar for each configuration that has it, as high as its mean."""
    jobs = [
        [{"name": "a", "ranks": [0, 4]}],
        [{"name": "a", "ranks": [0, 4]}, {"name": "b", "ranks": [1, 5], "size": "9 MB"}],
        [{"name": "a", "ranks": [0, 4]}, {"name": "b", "ranks": [1, 5], "size": "90 MB"}],
    ]
    run = write_run(
        tmp_path / "run", overrides={"sweep.job": jobs, "run.modes": ["base"]}, modelled=20, engines=("model",)
    )
    draw(run)
    figure = plot(run, "job_times")
    ticks = [[tick.get_text() for tick in axes.get_xticklabels()] for axes in figure.axes]
    assert ticks == [["a alone", "a + b 9 MB", "a + b 90 MB"], ["a + b 9 MB", "a + b 90 MB"]]
    (legend,) = figure.legends
    assert legend.legend_handles == [] and legend.get_title().get_text().startswith("predicted\nmean over 20 rounds")
    assert [axes.get_title() for axes in figure.axes] == ["a", "b"]
    stored = pq.read_table(run / "jobs.parquet").to_pandas().groupby(["job", "setting"]).completion_s.mean()
    drawn = {(row["job"], int(row["setting"])): float(row["mean_s"]) for row in data(run, "run-jobs")}
    assert drawn == pytest.approx(stored.to_dict())
    b = [bar.get_height() for bar in figure.axes[1].patches]
    assert b[1] / b[0] == pytest.approx(stored["b", 2] / stored["b", 1])


def test_a_job_that_repeats_is_titled_with_how_often(tmp_path):
    """Where the number differs between configurations, their labels have it."""
    often = {"name": "a", "ranks": [0, 4], "kind": "allreduce", "count": 10}
    jobs = [[often, {"name": "b", "ranks": [1, 5], "count": count}] for count in (2, 3)]
    sweep = {"sweep.job": jobs, "run.modes": ["base"]}
    run = write_run(tmp_path / "run", overrides=sweep, modelled=5, engines=("model",))
    assert [axes.get_title() for axes in plot(run, "job_times").axes] == ["a (10 AllReduces)", "b"]


@pytest.mark.parametrize("modes", [["base"], ["base", "wan"]])
def test_captions_and_the_report_speak_of_modes_only_if_there_are_several(tmp_path, modes):
    overrides = {"run.modes": modes, "sweep.fabric.routing": ["single", "ecmp"]}
    run = write_run(tmp_path / "run", overrides=overrides, modelled=60, engines=("model",))
    page = write(run).read_text()
    assert ("of the modes" in page) is (len(modes) > 1) and "<h2>The order" in page
    titles = [re.search(r"<dc:title>(.*?)</dc:title>", svg.read_text())[1] for svg in (run / "figures").glob("*.svg")]
    assert len(titles) >= 4
    for words in ("by mode", "each mode"):
        assert any(words in title for title in titles) is (len(modes) > 1)


def test_long_labels_of_swept_jobs_do_not_overlap(tmp_path):
    jobs, both = list[list[dict]](), {"ranks": [2, 3, 6, 7]}
    for of_class in ({}, {"class": "gold"}):
        mine = {"name": "mine", "ranks": [0, 1, 4, 5]} | of_class
        jobs += [[mine], *([mine, {"name": "theirs", "size": size} | both] for size in ("16 MB", "64 MB"))]
    for some in (jobs, jobs + [[*two, {"name": "third", "ranks": [0, 2]}] for two in jobs]):
        overrides = {"sweep.job": some, "class": [{"name": "gold", "priority": 0}], "run.modes": ["base"]}
        run = write_run(tmp_path / str(len(some)), overrides=overrides, modelled=5, engines=("model",))
        figure = plot(run)
        figure.canvas.draw()
        is_ranking = len(some) > 7
        axes = figure.axes[-1]
        labels = [one for one in (axes.get_yticklabels() if is_ranking else axes.get_xticklabels()) if one.get_text()]
        assert len(labels) == len(some) and labels[0].get_text().replace("\n", " ") == "mine without class alone"
        boxes = [label.get_window_extent() for label in labels]
        if is_ranking:
            assert all(upper.y0 > lower.y1 for upper, lower in itertools.pairwise(boxes))
        else:
            assert all(left.x1 < right.x0 for left, right in itertools.pairwise(boxes))
        assert "class gold (priority 0)" in figure.get_suptitle().replace("\n", " ")
