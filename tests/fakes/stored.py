"""Makes run folders for tests without a VM, in the format of run.py: with the model's numbers, and with measured
numbers that differ from the model's by a known share."""

import json
import shutil
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from analysis.results import reader, schema
from analysis.results.rows import Point, Rows
from analysis.results.writer import Writer, write_table
from hosts.collectives.schedule import Flow
from scenarios.engines.prediction import Plan, decisions_of
from scenarios.experiment.stored_settings import settings_as_json
from scenarios.policies.conditions import conditions_of
from scenarios.spec.load import Override, load_scenario, resolved
from scenarios.spec.scenario import Scenario

OFF = 3e-4
"""Measured times are the predicted ones times 1 to 1 + OFF."""


def write_run(
    directory: Path,
    *,
    overrides: dict[str, Any] | None = None,
    scenario: str = "paper",
    modelled: int = 200,
    emulated: int = 12,
    engines: tuple[str, ...] = ("model", "emulation"),
    drops: int = 0,
    late: bool = False,
    unfinished: dict[str, int] | None = None,
    off: float = OFF,
) -> Path:
    """Write a run of a scenario with so many collectives per point in each engine; return `directory`.

    Every measured collective lost `drops` packets, had a timer overrun if `late`, and took up to the share `off` longer
    than predicted. `unfinished` gives the number of collectives by mode in a run that is not finished.
    """
    changes = [Override(key, value, key) for key, value in (overrides or {}).items()]
    chosen = load_scenario(scenario, [*changes, Override("collective.count", modelled, "count")])
    settings, counts = settings_as_json(chosen), {"model": modelled, "emulation": emulated}
    directory.mkdir(parents=True)
    points = {}
    for place, setting in enumerate(chosen.configurations()):
        for engine in engines:
            for mode in setting.run.modes:
                rows = _modelled if engine == "model" else partial(_measured, place, drops=drops, late=late, off=off)
                points[Point(engine, place, mode)] = rows(setting, mode, counts[engine])
    (directory / "settings.json").write_text(json.dumps(settings))
    (directory / "scenario.toml").write_text(resolved(chosen))
    (directory / "provenance.json").write_text(json.dumps(_provenance(chosen, not unfinished)))
    if "emulation" in engines:
        tables = []
        for place, setting in enumerate(chosen.configurations()):
            conditions = conditions_of(setting)
            rates = conditions.shared_bps(0, emulated)
            tables.append(schema.conditions_table(place, 0, rates, conditions.shared_delays_s))
        write_table(directory / "conditions.parquet", schema.SCHEMAS["conditions"], tables)
    with closing(Writer(directory, settings, {point: range(len(rows)) for point, rows in points.items()})) as writer:
        for point, rows in points.items():
            writer.add(point, rows.part(0, (unfinished or {}).get(point.mode, len(rows))))
        writer.flush()
    if not unfinished:
        writer.write_tables()
        shutil.rmtree(directory / reader.PARTS)
    return directory


def _provenance(scenario: Scenario, finished: bool) -> dict[str, Any]:
    return {
        "format": 1,
        "name": scenario.name,
        "started": "2026-01-02T03:04:05+00:00",
        "ended": "2026-01-02T03:05:06+00:00" if finished else None,
        "command": ["scenarios/run.py", scenario.name],
        "seed": scenario.run.seed,
        "git": {"commit": "0" * 40, "dirty": False},
        "versions": {"longhaul": "0.1.0", "python": "3.11.2"},
        "machine": {"processor": "x", "cores": 2},
        "vm": None,
    }


def _modelled(setting: Scenario, mode: str, count: int) -> Rows:
    conditions = conditions_of(setting)
    plan = decisions_of(setting, mode, conditions, start=0, count=count)
    completion_s, of_jobs = Plan(setting, mode, plan, conditions).with_jobs()
    return Rows(
        0,
        {
            "completion_s": completion_s,
            "ring": plan.placement.astype(np.int16),
            "paths": plan.path.astype(np.int16),
            "reembedded": plan.reembedded,
            "rerouted": plan.rerouted,
        },
        jobs=of_jobs and of_jobs._asdict(),
    )


def _measured(place: int, setting: Scenario, mode: str, count: int, *, drops: int, late: bool, off: float) -> Rows:
    rows = _modelled(setting, mode, count)
    measured = {
        "completion_s": rows.completion_s * (1 + off * np.random.default_rng(place).random(count)),
        "predicted_s": rows.completion_s,
        "drops": np.full(count, drops),
        "late": np.full(count, late),
    }
    records = {"transfers": _transfers(setting, mode, count)}
    return Rows(0, rows.columns | measured, jobs=rows.jobs, records=records)


def _transfers(setting: Scenario, mode: str, count: int) -> np.ndarray:
    """Return the transfers of every collective in program order: if no flows share links, with times by the definition
    of a schedule, one transfer of a flow after the other; otherwise with the model's times."""
    workload, conditions, found = setting.workload, conditions_of(setting), []
    plan = decisions_of(setting, mode, conditions, start=0, count=count)
    shared = setting.shared_links(mode)
    seen = Plan(setting, mode, plan, conditions).times() if shared else None
    for k, placement in enumerate(plan.placement.tolist()):
        free: dict[int, float] = {}
        arrived: list[float] = []
        steps: list[int] = []
        for index, transfer in enumerate(workload.schedule.transfers):
            flow = workload.schedule.flows[transfer.flow]
            # When the transfer is handed to the transport, where it may wait.
            handed = max((arrived[one] for one in transfer.after), default=0.0)
            leaves = max(free.get(transfer.flow, 0.0), handed)
            free[transfer.flow] = leaves + transfer.amount * plan.beta_s[k, transfer.flow]
            if seen is not None:
                free[transfer.flow] = seen.leaves_s[index, k]
            arrived.append(free[transfer.flow] + plan.alpha_s[k, transfer.flow])
            steps.append(isinstance(flow, Flow) + max((steps[one] for one in transfer.after), default=0))
            if not isinstance(flow, Flow):
                continue
            owner = workload.owner(transfer)
            block = -1 if owner < 0 else placement[owner]
            times = [round(handed * 1e9), round(arrived[-1] * 1e9)]
            found.append([k, steps[-1], placement[flow.src], placement[flow.dst], block, *times])
    return np.array(found, dtype=np.int64)


def some_rows(start: int, count: int, *, n: int = 8, measured: bool = False) -> Rows:
    """Return random rows of collectives start .. start+count-1, which depend only on the arguments."""
    random, records = np.random.default_rng(start), {}
    rows: dict[str, Any] = {
        "completion_s": random.random(count),
        "bound_s": random.random(count),
        "best_ring_s": random.random(count),
        "best_ring_bound_s": random.random(count),
        "best_policy_s": random.random(count),
        "ring": random.permuted(np.tile(np.arange(n, dtype=np.int16), (count, 1)), axis=1),
        "paths": random.integers(-1, 200, (count, n), dtype=np.int16),
        "reembedded": random.random(count) < 0.5,
        "rerouted": np.ones(count, dtype=np.bool_),
    }
    if measured:
        transfers = random.integers(0, 10**9, (count * 3, 7))
        transfers[:, 0] = np.repeat(np.arange(start, start + count), 3)
        rows |= {
            "predicted_s": random.random(count),
            "drops": random.integers(0, 9, count),
            "late": random.random(count) < 0.5,
            "undisturbed": random.random(count) < 0.5,
            "reconfigure_s": np.where(random.random(count) < 0.5, np.nan, random.random(count)),
            "reconfigure_messages": random.integers(0, 99, count),
            "retransmitted_bytes": random.integers(0, 10**9, count).astype(np.float64),
            "quickest_transfer": random.random(count),
            "slowest_transfer": random.random(count),
            "fairness": np.where(random.random(count) < 0.5, np.nan, random.random(count)),
            "fairness_link": np.array(["", "g0>s0b0", "s0b0>s1b0"], dtype=object)[random.integers(0, 3, count)],
        }
        records = {
            "transfers": transfers,
            "counters": np.repeat(transfers[:, :5], 2, axis=0),
            "probes": transfers[:, :6],
        }
    return Rows(start, rows, records=records)
