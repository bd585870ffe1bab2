"""settings.json of a run folder: every configuration with what readers of the run's results need of it."""

from dataclasses import astuple
from typing import Any

from hosts.collectives.kinds import JobSpan, Workload
from scenarios.spec import classes
from scenarios.spec.labels import conditions_of_all, setting_of
from scenarios.spec.scenario import DEFAULTS, Scenario, plain_value, plain_values
from topologies.fabric.fabric import Fabric, build_fabric


def settings_as_json(scenario: Scenario) -> list[dict[str, Any]]:
    """Return every configuration as stored in settings.json: the swept values, the value of every key, the fabric that
    the result rows refer to, the schedule, traffic classes and jobs if it has any, and for each mode the shared links.
    With background traffic the schedule is that of round 0."""
    return [
        {
            "setting": index,
            "label": config.label,
            "swept": {key: plain_value(key, value) for key, value in config.at},
            "columns": config.columns,
            **_contest_as_json(index, config),
            "values": plain_values(config),
            "fabric": _fabric_as_json(build_fabric(config.fabric)),
            "schedule": _schedule_as_json(config.workload),
            "classes": classes.of_flows(config.classes, config.workload.dscp) if config.classes else None,
            "jobs": [
                {"name": one.name, "start_s": one.start_s, "background": one.is_background} | _works_as_json(one)
                for one in config.workload.jobs
            ],
            **({"rounds_differ": True} if config.has_drawn_jobs else {}),
            "shared_links": {mode: list(config.shared_links(mode)) for mode in config.run.modes},
            **_admission_as_json(config),
            **_deciding_as_json(config),
        }
        for index, config in enumerate(scenario.configurations())
    ]


def _contest_as_json(index: int, config: Scenario) -> dict[str, Any]:
    """Return the swept values in words with their coordinates, the baseline, the modes that are hashed, as
    `contests.Setting` has them, and further keys in words."""
    place = setting_of(index, config)
    further = conditions_of_all(config, DEFAULTS)
    about = {"at": [list(value) for value in place.at], "baseline": dict(place.baseline), "further": further}
    return about | ({"hashed": list(place.hashed)} if place.hashed else {})


def _admission_as_json(config: Scenario) -> dict[str, Any]:
    """Return a configuration's transfers with outcomes, if any, each with the range of its schedule's transfers."""
    spans = {one.name: [one.transfers.start, one.transfers.stop] for one in config.workload.jobs}
    transfers = [one.as_json() | {"transfers": spans.get(one.job.name, [0, 0])} for one in config.transfers]
    return {"admission": transfers} if transfers else {}


def _deciding_as_json(config: Scenario) -> dict[str, Any]:
    """Return the modes of which it is told how often they have chosen, if any."""
    return {"deciding": [*config.counted_modes]} if config.counted_modes else {}


def _works_as_json(job: JobSpan) -> dict[str, Any]:
    """Return the computations at each place of a training job, and the range of its transfers in the schedule."""
    if not job.computations:
        return {}
    return {"transfers": [job.transfers.start, job.transfers.stop], "places": job.places, "works": job.computations}


def _schedule_as_json(workload: Workload) -> dict[str, Any]:
    """Return a workload's schedule: of each flow the two places that it joins and its channel (of a stream its
    place and number); of each transfer its flow, its slots or seconds, the transfers it waits for, and the place
    whose block it begins with, if any. Transfers from index `waited_for` on are background traffic. `works` is what
    each place computes in training, in order."""
    flows = [list(astuple(flow)) for flow in workload.schedule.flows]
    transfers = [[one.flow, one.amount, list(one.after), workload.owner(one)] for one in workload.schedule.transfers]
    return {
        "algorithm": workload.algorithm,
        "slot_bytes": workload.slot_bytes,
        "flows": flows,
        "transfers": transfers,
        "waited_for": len(workload.foreground_transfers),
        "works": workload.computations,
    }


def _fabric_as_json(fabric: Fabric) -> dict[str, Any]:
    kinds = {"intra": "gpu-gpu", "to_br": "gpu-br", "from_br": "br-gpu", "wan": "wan"}
    routers = fabric.border_routers
    return {
        "gpus": [{"rank": g.rank, "name": g.name, "site": g.site, "leaf": g.leaf} for g in fabric.gpus],
        "border_routers": [{"name": name, "site": site} for name, site in zip(routers, fabric.br_sites, strict=True)],
        "transit": [switch.name for switch in fabric.switches if switch.kind == "transit"],
        "links": [{"index": ln.index, "src": ln.src, "dst": ln.dst, "kind": kinds[ln.kind]} for ln in fabric.links],
        "paths": [
            {"index": p.index, "links": list(p.links), "src_br": routers[p.src_br], "dst_br": routers[p.dst_br]}
            for p in fabric.paths
        ],
    }
