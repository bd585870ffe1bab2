"""ASTRA-sim: its traces and custom collectives are run here, and traces of this project there, in the same time.

Both networks have a link between every two ranks. ASTRA-sim's times are whole ns, and a collective of its own takes 1
to 2 ns more at its ends and for each sum.
"""

import json
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from hosts.collectives.chakra_writer import Call, Computation, content
from hosts.collectives.kinds import ALGORITHMS
from scenarios import api
from scenarios.experiment.export import exported
from tests.references.astra_sim import GIB_S, LATENCY_NS, built, ends_ns
from tests.references.conftest import Record, commit
from tests.references.page import FAILED, PASSED, Outcome, Suite

pytestmark = pytest.mark.references

HOW = "git clone --recurse-submodules https://github.com/astra-sim/astra-sim (of extern, ns-3 and csg-htsim may lack)"
EXAMPLES = [
    f"{kind}/{n}npus_1MB/{kind}"
    for kind in ("all_gather", "all_reduce", "all_to_all", "reduce_scatter")
    for n in (4, 8, 16)
]
CUSTOM = "examples/system/custom_collectives/custom_ring_allreduce_8npus_1MB/custom_allreduce"
EQUAL, AGREES = 0.0002, 0.005  # predicted to simulated, measured to predicted
GROUPS = {"1": [0, 2], "2": [1, 3]}
GB_S = GIB_S * 2**30 / 1e9


def config(ranks: int, **values: object) -> api.Scenario:
    """Return the scenario of a collective on ASTRA-sim's network."""
    fabric = {"fabric.gpus": [ranks], "run.modes": ["base"], "collective.count": 1, "collective.emulated": 1}
    links = {"conditions.intra_rate": f"{8 * GB_S:.8f} Gbit/s", "conditions.intra_delay": f"{LATENCY_NS} ns"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", api.ScenarioWarning)  # of small messages
        return api.scenario("paper", fabric | links | {f"collective.{name}": value for name, value in values.items()})


def taken_ns(found: api.Scenario, *, measured: bool) -> tuple[float, list[str]]:
    """Return the predicted time in ns, and sentences on what is wrong with it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", api.ScenarioWarning)
        rows = api.run(found, "both" if measured else "model").set_index("engine")
    model_s, wrong = float(rows.completion_s["model"]), list[str]()
    if measured and abs(rows.completion_s["emulation"] / model_s - 1) > AGREES:
        wrong.append(f"{rows.completion_s['emulation']:.9f} s were measured, {model_s:.9f} s predicted")
    if model_s < float(rows.bound_s["model"]) * (1 - 1e-9):
        wrong.append(f"{model_s:.9f} s are predicted, less than the lower bound")
    return 1e9 * model_s, wrong


def outcome(found: tuple[float, list[str]], ranks: int, *simulated: list[int]) -> Outcome:
    model_ns, wrong = found
    for ends in simulated:
        if len(ends) != ranks:
            wrong.append(f"{len(ends)} of {ranks} ranks end in ASTRA-sim")
        elif abs(max(ends) / model_ns - 1) > EQUAL:
            wrong.append(f"{model_ns:.0f} ns are predicted, {max(ends)} ns simulated")
    return Outcome(FAILED, "; ".join(wrong)) if wrong else Outcome(PASSED)


def write_steps(folder: Path) -> None:
    """Write the traces of a step of four ranks, as a script's are, with computing beside and between collectives."""
    for rank in range(4):
        group, ns = next(name for name, ranks in GROUPS.items() if rank in ranks), 100_000 + 50_000 * rank
        nodes: list[Computation | Call] = [Computation(1, "forward", 0, ns, 1e9, ())]
        nodes += [Call(2, "allgather 0", "allgather", 4 << 20, "", 4, ns, ns + 500_000, (1,))]
        nodes += [Computation(3, "backward", ns + 500_000, 200_000, 1e9, (2,))]
        nodes += [Call(4, "allreduce 0", "allreduce", 8 << 20, group, 2, ns + 700_000, ns + 900_000, (3,))]
        nodes += [Computation(5, "backward", ns + 700_000, 300_000, 1e9, (3,))]
        nodes += [Call(6, "reducescatter 1", "reducescatter", 4 << 20, "", 4, ns + 1_000_000, ns + 1_500_000, (4, 5))]
        nodes += [Call(7, "alltoall 2", "alltoall", 1 << 20, "", 4, ns + 1_500_000, ns + 1_600_000, (6,))]
        nodes += [Computation(8, "step", ns + 1_600_000, 50_000, 1e9, (7,))]
        (folder / f"step.{rank}.et").write_bytes(content(nodes, 0))
    (folder / "groups.json").write_text(json.dumps(GROUPS))


def test_traces_take_the_same_time_in_astra_sim(
    tmp_path: Path, material: Callable[[str, str], Path], record: Record
) -> None:
    source = material("astra-sim", HOW)
    program = built(source, tmp_path / "built")
    traces = source / "examples" / "workload" / "microbenchmarks"
    all_reduce = traces / "all_reduce" / "8npus_1MB" / "all_reduce"

    def simulated(workload: Path, ranks: int, **more: Path) -> list[int]:
        return ends_ns(program, tmp_path, workload, ranks, **more)

    def custom_ends(mine: api.Scenario) -> list[int]:
        for rank, data in enumerate(exported(mine, "chakra")):
            (tmp_path / f"mine.{rank}.et").write_bytes(data)
        return simulated(all_reduce, 8, custom=tmp_path / "mine")

    def trace(path: Path, ranks: int, *, measured: bool) -> tuple[float, list[str]]:
        return taken_ns(config(ranks, kind="trace", schedule=f"{path}.*.et"), measured=measured)

    def run() -> Mapping[str, Outcome]:
        outcomes = dict[str, Outcome]()
        for name in EXAMPLES:
            ranks = int(name.split("/")[1].partition("npus")[0])
            found = trace(traces / name, ranks, measured=ranks == 8)
            outcomes[name] = outcome(found, ranks, simulated(traces / name, ranks))
        custom = source / CUSTOM
        both = simulated(custom, 8), simulated(all_reduce, 8, custom=custom)
        outcomes["custom_allreduce.et"] = outcome(trace(custom, 8, measured=True), 8, *both)
        proven = config(8, kind="allreduce", schedule=f"{custom}.xml", size="1 MiB")
        outcomes["custom_allreduce.xml"] = outcome(taken_ns(proven, measured=True), 8, custom_ends(proven))
        for kind, algorithms in ALGORITHMS.items():
            for algorithm in algorithms:
                mine = config(8, kind=kind, algorithm=algorithm, chunk="1 MB")
                ends = custom_ends(mine)
                outcomes[f"exported {kind} {algorithm}"] = outcome(taken_ns(mine, measured=False), 8, ends)
        write_steps(tmp_path)
        ends = simulated(tmp_path / "step", 4, groups=tmp_path / "groups.json")
        outcomes["a script's step"] = outcome(trace(tmp_path / "step", 4, measured=True), 4, ends)
        return outcomes

    what = (
        "The traces and custom collectives among its examples, this project's schedules of every algorithm as custom "
        "collectives (`--export chakra`, 8 ranks, blocks of 1 MB), and a step as a script's trace has it, with groups "
        "and computing. A case passes if all ranks end in ASTRA-sim (congestion-aware analytical network, a link of 5 "
        "GiB/s and 1000 ns between every two ranks, sums that take no time) within 0.02 % of the predicted time; if "
        "an example of 8 ranks, and the step, is measured within 0.5 % of it; and if the XML is proven to do its "
        "AllReduce, in no less than the lower bound (its sums take no time, those of its `.et` 7 us each)."
    )
    outcomes = record(Suite("ASTRA-sim", commit(source), "github.com/astra-sim/astra-sim", what), run)
    assert not [name for name, one in outcomes.items() if one.kind == FAILED]
