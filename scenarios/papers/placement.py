"""Several tenants in a leaf-spine datacenter: on which of its servers each rank of a tenant is, and when tenants start.

The authors' code is public (github.com/jiahengxiong/MultiTenant_CCL); no paper with numbers is. Its random, leaf-local
and staggered plans and its optimised one are made here again by functions of our own, and timed by the flow model.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from scenarios.papers.paper import Claim, Paper, Repeated, Settings
from scenarios.studies.harness import Column, Show, Table

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from analysis.figures.output import Picture
    from analysis.model.tenant_rings import Edges, Orders
    from scenarios.spec.scenario import Scenario

    Floats = npt.NDArray[np.float64]

_LEAVES, _SPINES, _SERVERS, _TENANTS = 4, 2, 32, 3
_SERVER_GBPS, _LEAF_GBPS = 50, 25
_EACH = _SERVERS // _TENANTS
_BLOCK = "8 MiB"
_ASSIGNMENTS = 10
_ROUNDS, _WIDTH = 300, 16  # of each search
_SOLVER = 4.0  # the solver's work for each assignment, in some seconds of a processor
_AT_ONCE = (0.0,) * _TENANTS
_LEAST_S = (_EACH - 1) * 8 * 8 * 2**20 / (_LEAF_GBPS * 1e9)  # of an AllGather with a port between leaves to itself
RANDOM, LOCAL, STAGGERED, OPTIMISED, REFERENCE = "random", "leaf-local", "staggered", "optimised", "CP-SAT"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """For each tenant its servers in the order of its ranks, and its start in s."""

    orders: "Orders"
    starts_s: tuple[float, ...]

    def as_jobs(self) -> list[dict[str, Any]]:
        """Return the tenants as [[job]] tables."""
        return [
            {"name": f"tenant-{number + 1}", "ranks": order, "start": f"{round(start_s * 1e9)} ns"}
            for number, (order, start_s) in enumerate(zip(self.orders.tolist(), self.starts_s, strict=True))
        ]


@dataclass(frozen=True, kw_only=True)
class Line:
    """The last end of a plan and the mean of the tenants' ends, each as its mean over the assignments, with the gain
    over random plans and the least and the greatest gain in an assignment; and both in the first assignment, predicted
    and, where it was, measured."""

    plan: str
    makespan_s: float
    makespan_gain: float
    makespan_gains: tuple[float, float]
    mean_s: float
    mean_gain: float
    mean_gains: tuple[float, float]
    first_makespan_s: float
    first_mean_s: float
    measured_makespan_s: float | None
    measured_mean_s: float | None


def scenario_of(plans: Sequence[Plan]) -> "Scenario":
    """Return the scenario of these plans: a configuration for each, of one round."""
    from scenarios.api import scenario

    values = {
        "name": "placement",
        "fabric.gpus": [_SERVERS],
        "fabric.leaves": _LEAVES,
        "fabric.spines": _SPINES,
        "fabric.grain": "physical",
        "fabric.routing": "ecmp",
        "conditions.intra_rate": f"{_SERVER_GBPS} Gbit/s",
        "conditions.links": {"leaf-spine": {"rate": f"{_LEAF_GBPS} Gbit/s"}},
        "collective.kind": "allgather",
        "collective.chunk": _BLOCK,
        "collective.count": 1,
        "collective.emulated": 1,
        "run.modes": ["base"],
        "sweep.job": [plan.as_jobs() for plan in plans],
    }
    return scenario(values=values)


class Model:
    """The flow model of the tenants' AllGathers, for many orders at once; `edges` are the ports between leaves and
    spines from server to server, of each tenant."""

    def __init__(self) -> None:
        import numpy as np

        from scenarios.policies.conditions import conditions_of

        places = np.arange(_TENANTS * _EACH).reshape(_TENANTS, _EACH)
        (self._config,) = scenario_of([Plan(orders=places, starts_s=_AT_ONCE)]).configurations()
        self._conditions = conditions_of(self._config)
        self._between = np.array([port.kind in ("leaf_spine", "spine_leaf") for port in self._conditions.shared.all])
        self._workloads: dict[tuple[float, ...], Any] = {}
        self._passed = self._ports_passed()

    def _ports_passed(self) -> "npt.NDArray[np.int32]":
        """Return the ports from server to server, [tenants, servers, servers, H]: a tenant's flows have its number as
        their channel, so that a search only looks them up."""
        import numpy as np

        src, dst = (ends.astype(np.int16) for ends in np.nonzero(~np.eye(_SERVERS, dtype=bool)))
        within, found = np.full((1, len(src)), -1, np.int16), []  # no path over a WAN
        for tenant in range(_TENANTS):
            (ports,) = self._conditions.passed(0, src[None], dst[None], within, np.full(len(src), tenant, np.int16))
            table = np.full((_SERVERS, _SERVERS, ports.shape[-1]), -1, np.int32)
            table[src, dst] = ports
            found.append(table)
        return np.stack(found)

    def ends_s(self, orders: "Orders", starts_s: Sequence[float] = _AT_ONCE) -> "Floats":
        """Return when the tenants end with each of these orders [K, tenants, servers], [K, tenants] s."""
        import numpy as np

        from analysis.model.evaluator import Evaluator, Shared
        from hosts.collectives.schedule import Flow
        from scenarios.engines.timing import job_times

        workload, count = self._workload(tuple(starts_s)), len(orders)
        flows = workload.schedule.flows
        links = self._links(workload, orders)
        delay_s = self._config.conditions.intra_delay_s * np.array([isinstance(flow, Flow) for flow in flows])
        network = Shared(links, self._conditions.shared_bps(0, count), np.tile(delay_s, (count, 1)))
        evaluator = Evaluator(workload.schedule.transfers, flows=len(flows), slot_bytes=workload.slot_bytes)
        took_s = job_times(workload.jobs, evaluator.times(network).arrives_s).completion_s
        ends_s: Floats = took_s + np.array(starts_s)
        return ends_s

    def crowding(self, orders: "Orders", starts_s: Sequence[float] = _AT_ONCE) -> "Floats":
        """Return the sum of the squared numbers of rings' edges on the ports between leaves and spines, [K], where only
        tenants with the same start meet. An edge that is alone on a port has twice the rate of one of two."""
        import numpy as np

        workload, count = self._workload(_AT_ONCE), len(orders)
        links, ports = self._links(workload, orders), len(self._between)
        tenant = np.repeat(np.arange(_TENANTS), _EACH)
        together = np.unique(starts_s, return_inverse=True)[1][tenant]
        shape = count, int(together.max()) + 1, ports
        at = np.arange(count)[:, None, None], together[None, :, None], links
        cells = np.ravel_multi_index(np.broadcast_arrays(*at), shape, mode="clip")[links >= 0]
        table = np.bincount(cells, minlength=int(np.prod(shape))).reshape(shape).astype(float)
        crowded: Floats = (table[..., self._between] ** 2).sum(axis=(1, 2))
        return crowded

    def _links(self, workload: Any, orders: "Orders") -> "npt.NDArray[np.int32]":
        import numpy as np

        from scenarios.policies.decide import channels

        placement = orders.reshape(len(orders), -1)
        begins, ends = (np.array(places) for places in workload.schedule.ends)
        return self._passed[channels(workload), placement[:, begins], placement[:, ends]]

    def _workload(self, starts_s: tuple[float, ...]) -> Any:
        from scenarios.spec.round_workload import workload_of_jobs

        if starts_s not in self._workloads:
            jobs = (replace(job, start_s=start_s) for job, start_s in zip(self._config.jobs, starts_s, strict=True))
            spec = self._config.collective
            self._workloads[starts_s] = workload_of_jobs(tuple(jobs), spec, (), sites=(_SERVERS,), seed=0)
        return self._workloads[starts_s]

    def edges(self, servers: "Orders") -> "list[Edges]":
        """Return the ports between leaves and spines from each server of a tenant to each other one."""
        found: list[Edges] = []
        for passed, own in zip(self._passed.tolist(), servers.tolist(), strict=True):
            every = {(a, b): passed[a][b] for a in own for b in own if a != b}
            between = {
                ends: [port for port in ports if port >= 0 and self._between[port]] for ends, ports in every.items()
            }
            found.append(between)
        return found


def random_orders(rng: "np.random.Generator") -> "Orders":
    """Deal the first servers out to the tenants, in a random order: those of each, in the order of its ranks."""
    return rng.permutation(_TENANTS * _EACH).reshape(_TENANTS, _EACH)


def plans_of(model: Model, drawn: "Orders", rng: "np.random.Generator") -> dict[str, Plan]:
    """Return the plans of an assignment of servers: that as `drawn`, leaf by leaf, with starts, and optimised."""
    import numpy as np

    local = np.sort(drawn, axis=1)
    return {
        RANDOM: Plan(orders=drawn, starts_s=_AT_ONCE),
        LOCAL: Plan(orders=local, starts_s=_AT_ONCE),
        STAGGERED: _with_starts(model, drawn),
        OPTIMISED: _optimised(model, local, rng),
    }


def _with_starts(model: Model, orders: "Orders") -> Plan:
    from analysis.model.tenant_rings import best_starts

    starts_s = best_starts(_TENANTS, lambda starts_s: model.ends_s(orders[None], starts_s)[0].tolist())
    return Plan(orders=orders, starts_s=starts_s)


def _optimised(model: Model, first: "Orders", rng: "np.random.Generator") -> Plan:
    """Return the best plan of several searches for orders that crowd no port: with all tenants at once, and with one of
    them after the others. Their starts, and which of them is the best, are found with the times of the model."""
    import numpy as np

    from analysis.model.tenant_rings import search

    waits = [_AT_ONCE, *(tuple(np.where(np.arange(_TENANTS) == one, _LEAST_S, 0.0)) for one in range(_TENANTS))]
    found = [
        search(first, partial(model.crowding, starts_s=starts_s), rng=rng, rounds=_ROUNDS, width=_WIDTH)
        for starts_s in waits
    ]
    plans = [_with_starts(model, orders) for orders in found]
    return min(plans, key=lambda plan: model.ends_s(plan.orders[None], plan.starts_s).mean())


def reference(model: Model, drawn: "Orders") -> tuple[Plan, bool]:
    """Return CP-SAT's plan, in which tenants that share a port take turns, and whether it is proven to be the best one.

    Raises NotInstalledError without OR-Tools, and ValueError if it has found none.
    """
    from analysis.model.tenant_rings import take_turns

    shared, alone = _SERVER_GBPS // _LEAF_GBPS, 1
    found = take_turns(drawn.tolist(), model.edges(drawn), alone=alone, shared=shared, search=_SOLVER)
    unit_s = _LEAST_S / shared
    return Plan(orders=found.orders, starts_s=tuple(unit_s * start for start in found.starts)), found.proven


def measured_s(plans: Sequence[Plan], *, jobs: int, progress: Show) -> "Floats":
    """Measure when the tenants of these plans end, [plans, tenants] s, with `jobs` VMs at a time.

    Raises RunError if a VM fails, and vm.CannotRunError if this machine cannot run one.
    """
    import numpy as np

    from scenarios.api import RunError, engine_for
    from scenarios.engines.base import Failed, Slice

    engine, configs = engine_for(scenario_of(plans), "emulation", jobs=jobs)
    lasted_s: dict[int, Floats] = {}
    with closing(engine.run(configs)) as events:
        for event in events:
            if isinstance(event, Failed):
                raise RunError(event.why)
            if isinstance(event, Slice):
                (lasted_s[event.setting],) = event.rows.jobs["completion_s"]
                progress(f"{len(lasted_s)} of {len(plans)} plans measured")
    return np.array([lasted_s[index] + plan.starts_s for index, plan in enumerate(plans)])


def _repeat(settings: Settings, show: Show) -> Repeated:
    import numpy as np

    from analysis.model.optimal_schedule import NotInstalledError

    model, notes = Model(), list[str]()
    ends_s: dict[str, list[Floats]] = {}
    first: dict[str, Plan] = {}
    proven: list[bool] = []
    for number in range(_ASSIGNMENTS):
        show(f"{number} of {_ASSIGNMENTS} assignments planned")
        rng = np.random.default_rng((settings.seed, number))
        drawn = random_orders(rng)
        plans = plans_of(model, drawn, rng)
        first = first or dict(plans)
        try:
            plans[REFERENCE], is_proven = reference(model, drawn)
            proven.append(is_proven)
        except NotInstalledError as missing:
            notes = [f"{REFERENCE} is left out: {missing}"]
        for name, plan in plans.items():
            ends_s.setdefault(name, []).append(model.ends_s(plan.orders[None], plan.starts_s)[0])
    measured: dict[str, Floats] = {}
    if settings.measures:
        measured = dict(zip(first, measured_s([*first.values()], jobs=settings.jobs, progress=show), strict=True))
        furthest = max(abs(own_s / ends_s[name][0] - 1).max() for name, own_s in measured.items())
        notes.append(f"a tenant's measured end is within {100 * furthest:.2g} % of the predicted one")
    lines = [_line(name, np.array(own), np.array(ends_s[RANDOM]), measured.get(name)) for name, own in ends_s.items()]
    if proven:
        optimum_s, found_s = (np.array(ends_s[name]).mean(axis=1) for name in (REFERENCE, OPTIMISED))
        notes.append(
            f"{REFERENCE}: the best plan in which tenants that share a port take turns, proven in {sum(proven)} of "
            f"{_ASSIGNMENTS} assignments; the search's mean completion is at most "
            f"{_percent(max(found_s / optimum_s - 1))} % above it"
        )
    return Repeated(
        tables=[_table(lines, notes)],
        claims=[*_claims({line.plan: line for line in lines})],
        lines=[asdict(line) for line in lines],
        picture=lambda: _picture(lines),
    )


def _line(plan: str, ends_s: "Floats", random_s: "Floats", measured: "Floats | None") -> Line:
    """Return the line of a plan, given its ends and those of random plans, [assignments, tenants], and measured ends of
    the first assignment, [tenants]."""
    last_s, mean_s = ends_s.max(axis=1), ends_s.mean(axis=1)
    gains = [1 - own / random for own, random in ((last_s, random_s.max(axis=1)), (mean_s, random_s.mean(axis=1)))]
    return Line(
        plan=plan,
        makespan_s=float(last_s.mean()),
        makespan_gain=float(1 - last_s.mean() / random_s.max(axis=1).mean()),
        makespan_gains=(float(gains[0].min()), float(gains[0].max())),
        mean_s=float(mean_s.mean()),
        mean_gain=float(1 - mean_s.mean() / random_s.mean()),
        mean_gains=(float(gains[1].min()), float(gains[1].max())),
        first_makespan_s=float(last_s[0]),
        first_mean_s=float(mean_s[0]),
        measured_makespan_s=None if measured is None else float(measured.max()),
        measured_mean_s=None if measured is None else float(measured.mean()),
    )


def _table(lines: Sequence[Line], notes: Sequence[str]) -> Table[Line]:
    def of_range(gain: float, gains: tuple[float, float]) -> str:
        return f"{_percent(gain)} ({_percent(gains[0])} to {_percent(gains[1])})" if any(gains) else ""

    columns = [
        Column[Line]("plan", lambda line: line.plan, left=True),
        Column[Line]("makespan (ms)", lambda line: _ms(line.makespan_s)),
        Column[Line]("gain (%)", lambda line: of_range(line.makespan_gain, line.makespan_gains)),
        Column[Line]("mean completion (ms)", lambda line: _ms(line.mean_s)),
        Column[Line]("gain (%)", lambda line: of_range(line.mean_gain, line.mean_gains)),
        Column[Line]("first: makespan (ms)", lambda line: _ms(line.first_makespan_s)),
    ]
    if any(line.measured_makespan_s is not None for line in lines):
        columns += [
            Column[Line]("measured", lambda line: _ms(line.measured_makespan_s), why="it is not measured"),
            Column[Line]("first: mean completion (ms)", lambda line: _ms(line.first_mean_s)),
            Column[Line]("measured", lambda line: _ms(line.measured_mean_s), why="it is not measured"),
        ]
    title = (
        f"Ends of {_TENANTS} tenants, means over {_ASSIGNMENTS} assignments of servers; gain: over random, in brackets"
    )
    title += "\nits least and greatest in an assignment; first: in the first assignment"
    return Table(columns, lines, title=title, notes=notes)


def _claims(lines: Mapping[str, Line]) -> Iterator[Claim]:
    leaf, staggered, optimised = (lines[name] for name in (LOCAL, STAGGERED, OPTIMISED))
    yield Claim(
        says="ranks ordered leaf by leaf end earlier than in random order (makespan)",
        found=100 * leaf.makespan_gain,
        unit="%",
        because="each tenant has as many edges between leaves in either order",
    )
    yield Claim(
        says="tenants that start in turn end earlier on average than at once, in the same order (mean completion)",
        found=100 * staggered.mean_gain,
        unit="%",
        because="a ring that crowds its own ports takes as long alone as with others",
    )
    yield Claim(
        says="the optimised plan ends before the leaf-local one (makespan)",
        found=100 * (1 - optimised.makespan_s / leaf.makespan_s),
        unit="%",
        because="the hash leaves a leaf-local ring no crowded port",
    )
    yield Claim(
        says="the optimised plan has a shorter mean completion than the best of the others",
        found=100 * (1 - optimised.mean_s / min(leaf.mean_s, staggered.mean_s, lines[RANDOM].mean_s)),
        unit="%",
        because="the hash leaves a leaf-local ring no crowded port",
    )


def _picture(lines: Sequence[Line]) -> "Picture":
    from analysis.figures.bars import Bar, picture

    bars = []
    for line in lines:
        bars += [
            Bar("makespan", line.plan, 1e3 * line.makespan_s),
            Bar("mean completion", line.plan, 1e3 * line.mean_s),
        ]
        for group, value_s in (
            ("makespan, first assignment", line.measured_makespan_s),
            ("mean completion, first assignment", line.measured_mean_s),
        ):
            if value_s is not None:
                bars.append(Bar(group, line.plan, 1e3 * value_s, measured=True))
    note = f"predicted: means over {_ASSIGNMENTS} assignments"
    return picture(bars, name="placement", y="time since all could begin (ms)", note=note)


def _percent(share: float) -> str:
    return f"{round(100 * share, 1) + 0.0:.1f}"  # not -0.0


def _ms(value_s: float | None) -> str:
    return "" if value_s is None else f"{1e3 * value_s:,.2f}"


PAPER = Paper(
    reference="multi-tenant collectives in a leaf-spine datacenter (github.com/jiahengxiong/MultiTenant_CCL, 8718307)",
    result=f"makespan and mean completion of {_TENANTS} tenants' AllGathers, by placement and starts",
    assumed=[
        f"{_LEAVES} leaves, {_SPINES} spines, {_SERVERS} servers; {_SERVER_GBPS} Gbit/s from a server to its leaf, "
        f"{_LEAF_GBPS} from a leaf to a spine, as in the code; 0.7 us from server to server",
        f"each tenant has {_EACH} of the first {_TENANTS * _EACH} servers, at random, and an AllGather with blocks of "
        f"{_BLOCK} on a ring, as in the code; a placement is the order of its ranks on its servers",
        "the spine is chosen by a hash of both servers and the tenant, which is not the code's",
        "its staggered plan (Harmonics) and its optimised one (column generation, Gurobi) are not made again: here "
        "tenants start at once or when another one ends, the best by the model; and orders are found by local search",
        "no results of the authors are public: the claims are what the code calls baselines and its own proposal",
    ],
    repeat=_repeat,
)
