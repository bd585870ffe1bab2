"""Run folders made for tests, without a VM: the model's numbers, and in place of measured ones the model's off by a
known share."""

import json
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from analysis.timing import completion_s
from hosts.collectives import ring_allgather
from scenarios.loader import Override, load_scenario, resolved
from scenarios.plan import MODES, Decisions, decide
from scenarios.progress import label
from scenarios.spec import Scenario, values_of
from topologies.conditions import delays_s, sampler
from topologies.fabric import Fabric, build_fabric

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
) -> Path:
    """A finished run of that scenario with that many collectives a point in each engine."""
    changes = [Override(key, value, key) for key, value in (overrides or {}).items()]
    chosen = load_scenario(scenario, [*changes, Override("collective.count", modelled, "count")])
    directory.mkdir(parents=True)
    rows, transfers, conditions, settings = [], [], [], []
    for place, setting in enumerate(chosen.settings()):
        fabric = build_fabric(setting.fabric)
        settings.append(_described(place, setting, fabric, [axis.key for axis in chosen.sweep]))
        if "emulation" in engines:
            conditions.append(_conditions(place, setting, fabric, emulated))
        for engine in engines:
            count = modelled if engine == "model" else emulated
            for mode in setting.run.modes:
                plan = _plan(setting, fabric, mode, count)
                rows.append(_rows(engine, place, setting, mode, plan))
                if engine == "emulation":
                    transfers += _transfers(place, mode, plan)
    _write(directory / "collectives.parquet", pd.concat(rows))
    if conditions:
        _write(directory / "conditions.parquet", pd.concat(conditions))
        _write(directory / "transfers.parquet", pd.DataFrame(transfers))
    (directory / "settings.json").write_text(json.dumps(settings))
    (directory / "scenario.toml").write_text(resolved(chosen))
    (directory / "provenance.json").write_text(json.dumps(_provenance(chosen)))
    return directory


def _write(path: Path, table: pd.DataFrame) -> None:
    pq.write_table(pa.Table.from_pandas(table, preserve_index=False), path)


def _provenance(scenario: Scenario) -> dict[str, Any]:
    return {
        "format": 1,
        "name": scenario.name,
        "started": "2026-01-02T03:04:05+00:00",
        "ended": "2026-01-02T03:05:06+00:00",
        "command": ["scenarios/run.py", scenario.name],
        "seed": scenario.run.seed,
        "git": {"commit": "0" * 40, "dirty": False},
        "versions": {"longhaul": "0.1.0", "python": "3.11.2"},
        "machine": {"processor": "x", "cores": 2},
        "vm": None,
    }


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return str(value) if isinstance(value, Path) else value


def _described(place: int, setting: Scenario, fabric: Fabric, swept: list[str]) -> dict[str, Any]:
    values = {key: _plain(value) for key, value in values_of(setting).items()}
    names = fabric.border_routers
    return {
        "setting": place,
        "label": label(setting),
        "swept": {key: values[key] for key in swept},
        "values": values,
        "columns": {},
        "fabric": {
            "gpus": [{"rank": g.rank, "name": g.name, "site": g.site, "leaf": g.leaf} for g in fabric.gpus],
            "border_routers": [{"name": n, "site": s} for n, s in zip(names, fabric.br_sites, strict=True)],
            "transit": [switch.name for switch in fabric.switches if switch.kind == "transit"],
            "links": [
                {"index": link.index, "src": link.src, "dst": link.dst, "kind": _KINDS[link.kind]}
                for link in fabric.links
            ],
            "paths": [
                {
                    "index": path.index,
                    "links": list(path.links),
                    "src_br": names[path.src_br],
                    "dst_br": names[path.dst_br],
                }
                for path in fabric.paths
            ],
        },
    }


_KINDS = {"intra": "gpu-gpu", "to_br": "gpu-br", "from_br": "br-gpu", "wan": "wan"}


def _conditions(place: int, setting: Scenario, fabric: Fabric, count: int) -> pd.DataFrame:
    rates_bps = sampler(fabric, setting.conditions, seed=setting.run.seed).rates_bps(0, count)
    links = len(fabric.links)
    return pd.DataFrame(
        {
            "setting": place,
            "collective": np.repeat(np.arange(count), links),
            "link": np.tile(np.arange(links), count),
            "rate_bps": rates_bps.ravel().astype(np.int64),
            "delay_s": np.tile(delays_s(fabric, setting.conditions), count),
        }
    )


def _plan(setting: Scenario, fabric: Fabric, mode: str, count: int) -> Decisions:
    return decide(
        fabric,
        sampler(fabric, setting.conditions, seed=setting.run.seed),
        delays_s=delays_s(fabric, setting.conditions),
        mode=MODES[mode],
        chunk_bytes=setting.collective.chunk_bytes,
        reembed_every=setting.collective.reembed_every,
        start=0,
        count=count,
    )


def _rows(engine: str, place: int, setting: Scenario, mode: str, plan: Decisions) -> pd.DataFrame:
    predicted = completion_s(plan.edge_alpha_s, plan.edge_beta_s)
    off = 1 + OFF * np.random.default_rng(place).random(len(predicted)) if engine == "emulation" else 1
    return pd.DataFrame(
        {
            "engine": engine,
            "setting": place,
            "mode": mode,
            "gpus": setting.gpus,
            "gpus_per_site": "+".join(map(str, setting.fabric.gpus_per_site)),
            "chunk_bytes": setting.collective.chunk_bytes,
            "wan_delay_s": setting.conditions.wan_delay_s,
            "seed": setting.run.seed,
            "collective": np.arange(len(predicted)),
            "completion_s": predicted * off,
            "predicted_s": predicted,
            "ring": list(plan.ring.astype(np.int16)),
            "paths": list(plan.path.astype(np.int16)),
            "reembedded": plan.reembedded,
            "rerouted": plan.rerouted,
            "drops": 0,
        }
    )


def _transfers(place: int, mode: str, plan: Decisions) -> list[dict[str, Any]]:
    """The transfers of every collective, one after the other as the definition of the ring AllGather has them."""
    found = []
    for k, ring in enumerate(plan.ring.tolist()):
        free, arrived = dict.fromkeys(ring, 0.0), {(rank, rank): 0.0 for rank in ring}
        edge = {rank: (plan.edge_alpha_s[k, i], plan.edge_beta_s[k, i]) for i, rank in enumerate(ring)}
        for move in ring_allgather(ring):
            alpha, beta = edge[move.src]
            handed = arrived[move.chunk, move.src]  # to the transport, where it waits for the chunk before it
            leaves = max(free[move.src], handed)
            free[move.src] = leaves + beta
            arrived[move.chunk, move.dst] = leaves + beta + alpha
            which = {"engine": "emulation", "setting": place, "mode": mode, "collective": k}
            found.append(which | asdict(move) | {"start_s": handed, "end_s": leaves + beta + alpha})
    return found
