"""What a run found, in words and numbers: a table and the claims for readers, JSON and CSV for programs."""

import csv
import io
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from analysis.certificate import Certificate
from analysis.claims import ABOUT, PAPER_JOINT_GAIN, PAPER_ORDER
from analysis.metrics import Interval
from scenarios.described import further
from scenarios.progress import label
from scenarios.results import PointResult, SettingResult
from scenarios.spec import Scenario

_COLUMNS = (
    "engine",
    "setting",
    "mode",
    "collectives",
    "mean, 95 % interval (ms)",
    "total (s)",
    "gain over base, 95 % interval",
)


def as_json(run: str, results: Sequence[SettingResult], certificate: Certificate | None) -> str:
    """One JSON object on one line: the run's folder, its points, and its fidelity where something was measured."""
    points = [_point(result, point) for result in results for point in result.points]
    answer: dict[str, Any] = {"run": run, "points": points}
    if certificate is not None:
        answer["fidelity"] = {name: value for name, value in asdict(certificate).items() if value is not None}
    return json.dumps(answer, allow_nan=False)


def plan_as_json(plans: Sequence[tuple[str, Sequence[Scenario]]]) -> str:
    """The object of `as_json` for a run that was not made: no folder, and every engine's points without times."""
    times = dict.fromkeys(("mean_s", "total_s", "gain_vs_base"))
    points = [
        _which(engine, setting, mode) | times
        for engine, settings in plans
        for setting in settings
        for mode in setting.run.modes
    ]
    return json.dumps({"run": None, "points": points}, allow_nan=False)


def _point(result: SettingResult, point: PointResult) -> dict[str, Any]:
    return _which(result.engine, result.setting, point.mode) | {
        "mean_s": point.summary.mean_s.value,
        "total_s": point.summary.total_s.value,
        "gain_vs_base": None if point.gain is None else point.gain.value,
    }


def _which(engine: str, setting: Scenario, mode: str) -> dict[str, Any]:
    return {
        "engine": engine,
        "mode": mode,
        "gpus": setting.gpus,
        "chunk_bytes": setting.collective.chunk_bytes,
        "wan_delay_s": setting.conditions.wan_delay_s,
        "collectives": setting.collective.count,
        "seed": setting.run.seed,
        **_clock(setting),
        **further(setting),
    }


def _clock(setting: Scenario) -> dict[str, Any]:
    """What is measured on the wall clock says so, and what was carried."""
    if not setting.run.is_real:
        return {}
    scale = setting.run.scale
    carried_bytes = scale.chunk_bytes(setting.collective.chunk_bytes)
    return {"clock": "wall", "rate_scale": str(scale), "carried_chunk_bytes": carried_bytes}


def summary_csv(results: Sequence[SettingResult]) -> str:
    """The points as CSV: what JSON holds, the GPUs of each site, and the ends of every 95 % interval.

    An interval that cannot be had (a single block of collectives) is empty, as is a gain without base.
    """
    rows = [
        {"setting": result.place} | _point(result, point) | _ends(result, point)
        for result in results
        for point in result.points
    ]
    text = io.StringIO()
    columns = list(dict.fromkeys(name for row in rows for name in row))  # some have one of the wall clock's, too
    table = csv.DictWriter(text, fieldnames=columns, restval="", lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    return text.getvalue()


def _ends(result: SettingResult, point: PointResult) -> dict[str, Any]:
    summary = point.summary
    ends: dict[str, Any] = {"gpus_per_site": "+".join(map(str, result.setting.fabric.gpus_per_site))}
    intervals = {"mean_{}_s": summary.mean_s, "total_{}_s": summary.total_s, "gain_{}": point.gain}
    for name, interval in intervals.items():
        for end in ("low", "high"):
            value = math.nan if interval is None else getattr(interval, end)
            ends[name.format(end)] = "" if math.isnan(value) else value
    return ends


def as_text(results: Sequence[SettingResult]) -> str:
    """The points as a table, and for each setting what was found of the paper's claims."""
    rows = [_COLUMNS, *(row for result in results for row in _rows(result))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    lines = [
        "  ".join(_aligned(cell, width, i) for i, (cell, width) in enumerate(zip(row, widths, strict=True)))
        for row in rows
    ]
    lines = [line.rstrip() for line in lines]
    paper = f"the paper's claims: {' > '.join(PAPER_ORDER)}, joint about {PAPER_JOINT_GAIN:.0%} below base"
    return "\n".join([*lines, "", f"{paper} (here: within {ABOUT * 100:.0f} points of it)", *_claims(results)])


def _aligned(cell: str, width: int, column: int) -> str:
    return cell.ljust(width) if column < 3 else cell.rjust(width)


def _rows(result: SettingResult) -> Iterator[tuple[str, ...]]:
    for point in result.points:
        summary = point.summary
        mean = f"{summary.mean_s.value * 1e3:,.3f}{_between(summary.mean_s, 1e3, 3)}"
        total, count = f"{summary.total_s.value:,.3f}", f"{summary.collectives:,}"
        yield result.engine, label(result.setting), point.mode, count, mean, total, _gain(point)


def _gain(point: PointResult) -> str:
    if point.gain is None or point.mode == "base":
        return ""
    return f"{point.gain.value:.1%}{_between(point.gain, 100, 1)}"


def _between(interval: Interval, scale: float, digits: int) -> str:
    if math.isnan(interval.low):
        return " [-]"
    return f" [{interval.low * scale:,.{digits}f}, {interval.high * scale:,.{digits}f}]"


def _claims(results: Sequence[SettingResult]) -> Iterator[str]:
    for result in results:
        found = result.found
        ran = {point.mode for point in result.points}
        verdict = _verdict(found.order_holds) if ran == set(PAPER_ORDER) else ""
        line = f"{result.engine}, {label(result.setting)}: {found.order_text}{verdict}"
        for point in result.points:
            if point.mode == "joint" and point.gain is not None:
                line += f"; joint {_gain(point)} below base{_verdict(found.joint_holds)}"
        yield line


def _verdict(holds: bool | None) -> str:
    return {True: " (holds)", False: " (differs)", None: " (open)"}[holds]
