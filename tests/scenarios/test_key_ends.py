"""Both ends of every numeric key run, in the model and in the emulation, or are refused by the emulation with the key.

The keys and their ends come from the table of keys, so a new key is tested as soon as it is there. A key that has an
effect only together with others needs these others in CONTEXTS.
"""

from pathlib import Path

import numpy as np
import pytest

from scenarios.engines.base import Slice
from scenarios.engines.emulation import check_waits, emulated
from scenarios.engines.model import Model, as_modelled
from scenarios.spec import ScenarioError
from scenarios.spec.keys import KEYS, SWEPT
from scenarios.spec.load import Override, load_scenario, resolved, scenario_of
from tests.fakes.runs import answer, rows
from topologies.fabric.fabric import FabricSpec, build_fabric

CHAKRA = Path(__file__).parent.parent / "data" / "chakra"
SMALL = {"collective.count": 1, "collective.emulated": 1, "run.modes": ["base"], "fabric.gpus": 4}
TRAINING = {"collective.kind": "training"}
FIFO = {"transport.queue": "fifo", "fabric.buffer": "100 MB"}
TE = {"fabric.routing": "te"}
PROGRAM = {"program.command": "true"}
TRANSFER = {
    "fabric.routing": "spray",
    "admission.protect": "link",
    "job": [{"name": "a", "kind": "transfer", "ranks": [0, 2], "size": "1 MB", "deadline": "1000 s"}],
}
CONTEXTS = {
    "training": TRAINING,
    "te": TE,
    "program": PROGRAM,
    "fabric.hash_seed": {"fabric.routing": "ecmp"},
    "fabric.paths": {"fabric.wan": "five-router"},
    "conditions.trace_step": {"conditions.trace": "trace.csv"},
    "collective.tflops": {"collective.kind": "trace", "collective.schedule": f"{CHAKRA}/all_gather.*.et"},
    "fabric.rails": {"fabric.grain": "physical", "collective.channels": 1},
    "fabric.oversubscription": {"fabric.grain": "physical"},
    "fabric.buffer": {"transport.queue": "fifo"},
    "fabric.wan_loss": FIFO,
    "conditions.interval": {"conditions.every": "1 ms"},
    ("collective.emulated", "1-2"): {"collective.count": 3},
    "collective.pieces": {"collective.kind": "broadcast"},
    "collective.reembed_every": {"run.modes": ["joint"]},
    "run.search": {"run.referees": ["schedule"], "collective.chunk": "8 MB"},
    "run.rate_scale": {"run.clock": "wall", "collective.chunk": "100 MB"},
    "transport.ecn_threshold": {
        "transport.queue": "fifo",
        "fabric.buffer": "2 GB",
        "transport.congestion_control": "dctcp",
    },
    ("training.chunks", 64): TRAINING | {"training.pipeline": "interleaved"},
    "training.weights": TRAINING | {"training.pipeline": "zero-bubble", "training.backward": "1000 s"},
    ("training.replicas", 128): TRAINING | {"fabric.gpus": 256, "training.micro_batches": 1},
    "training.buckets": TRAINING | {"training.replicas": 2},
    "training.every": TRAINING | {"training.replicas": 2, "training.micro_batches": 1},
    "training.gradient_size": TRAINING | {"training.replicas": 2},
    "training.fragments": TRAINING | {"training.replicas": 2, "training.micro_batches": 1, "training.every": 1000},
    "training.overlap": TRAINING | {"training.replicas": 2, "training.micro_batches": 1, "training.every": 1000},
    "training.bits": TRAINING | {"training.replicas": 2},
    "training.held": TRAINING | {"training.memory": "1000 TB", "training.micro_batches": 1},
    "training.memory": TRAINING | {"training.held": "1 B", "training.micro_batches": 1},
    ("te.every", "100 us"): TE | {"te.demand": "measured", "te.sample": "100 us"},
    ("te.every", "1000 s"): TE | {"te.demand": "measured"},
    "program.memory": PROGRAM | {"program.ranks": [0]},
    "te.sample": TE | {"te.demand": "measured"},
    "control.probe": {
        "policy": [{"name": "probing", "reroute": "every 1", "knowledge": "probed"}],
        "run.modes": ["probing"],
    },
    "admission.recovery": TRANSFER,
    "run.machines": {"fabric.gpus": [1] * 10},
}
REFUSED = {("admission.recovery", "1 ns"): r"1 ns is less than TCP may need .*; allowed: 2\d0 ms or more"}
"""Ends that no scenario can have, as the least value depends on the fabric, with the refusals that tell it."""
ENDS = [(key.name, end) for key in KEYS.values() for end in key.kind.ends]
LONG = {("collective.count", 10_000_000)}  # half a minute in the model
EMULATED = {
    "conditions.wan_rate": {"collective.chunk": "1 B"},
    "conditions.intra_rate": {"collective.chunk": "1 B"},
    "conditions.wan_delay": {},
    "conditions.intra_delay": {},
    "transport.rto_min": {},
    "control.delay": {},
    "collective.channels": {"collective.chunk": "100 kB"},
    "collective.pieces": {},
}
"""Keys whose ends the emulation runs in a few seconds each, and what a fast run needs."""


def loaded(name, end, *, swept=False):
    """Return the scenario with one end of a key's range, alone but for what the key needs."""
    key = KEYS[name]
    needs = CONTEXTS.get((name, end), CONTEXTS.get(name, CONTEXTS.get(key.table, {})))
    if len(key.samplers) == 1:
        needs = needs | {"conditions.sampler": key.samplers[0]}
    given = SMALL | needs | ({f"sweep.{name}": [end]} if swept else {name: end})
    if swept:
        given.pop(name, None)
    return load_scenario("paper", [Override(one, value, one) for one, value in given.items()])


def configuration(name, end):
    """Return the only configuration of such a scenario."""
    (one,) = loaded(name, end).configurations()
    return one


@pytest.mark.parametrize(("name", "end"), [each for each in ENDS if each[0] in SWEPT and each not in REFUSED])
def test_a_stored_run_that_swept_a_key_is_read_again(tmp_path, monkeypatch, name, end):
    monkeypatch.chdir(tmp_path)
    links = build_fabric(FabricSpec(gpus_per_site=(2, 2))).links
    Path("trace.csv").write_text("time,link,rate\n" + "".join(f"0,{link.name},10 Gbit/s\n" for link in links))
    asked = loaded(name, end, swept=True)
    assert scenario_of(resolved(asked), is_stored=True) == asked


@pytest.mark.parametrize(
    ("name", "end"),
    [pytest.param(*each, marks=[pytest.mark.slow] * (each in LONG), id=f"{each[0]}={each[1]}") for each in ENDS],
)
def test_the_model_runs_at_both_ends_of_every_numeric_key(tmp_path, monkeypatch, name, end):
    """Of the keys of programs, and of the search that needs OR-Tools, the values are read."""
    monkeypatch.chdir(tmp_path)
    links = build_fabric(FabricSpec(gpus_per_site=(2, 2))).links
    Path("trace.csv").write_text("time,link,rate\n" + "".join(f"0,{link.name},10 Gbit/s\n" for link in links))
    if (name, end) in REFUSED:
        with pytest.raises(ScenarioError, match=REFUSED[name, end]):
            configuration(name, end)
        return
    config = configuration(name, end)
    if name.startswith(("program.", "run.search")):
        assert KEYS[name].kind.read(end) == config.value(name)
        return
    slices = [one for one in Model(jobs=1).run([as_modelled(config)]) if isinstance(one, Slice)]
    times_s = np.concatenate([one.rows.completion_s for one in slices])
    assert len(times_s) == config.collective.count and (times_s > 0).all() and np.isfinite(times_s).all()


def test_every_key_of_numbers_has_its_ends():
    plain = {key.name for key in KEYS.values() if not key.kind.ends and {int, float} & {*key.kind.types}}
    assert plain == set()
    assert len(ENDS) > 100


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "end"), [(name, end) for name in EMULATED for end in KEYS[name].kind.ends if (name, end) not in LONG]
)
def test_the_emulation_runs_at_both_ends_of_keys_of_links_and_messages(tmp_path, name, end):
    given = SMALL | CONTEXTS.get(name, {}) | EMULATED[name] | {name: end, "fabric.border_routers": 1}
    text = {key: value if isinstance(value, str) else str(value) for key, value in given.items()}
    text["run.modes"] = "['base']"
    answer(tmp_path / "run", "--engine", "emulation", sets=[f"{key}={value}" for key, value in text.items()])
    (completion_s,) = rows(tmp_path / "run").completion_s
    assert completion_s > 0


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"collective.chunk": "1000 TB"}, "collective.chunk: the 3000 TB of a connection"),
        ({"collective.size": "1000 TB"}, "collective.size: "),
        ({"conditions.wan_rate": "1 kbit/s"}, "at the slowest link of conditions .1 kbit/s.*allowed: 9.9 kB on a"),
    ],
)
def test_what_waits_too_long_for_the_emulation_is_refused_with_its_key_and_what_is_allowed(given, words):
    scenario = load_scenario("paper", [Override(one, value, one) for one, value in (SMALL | given).items()])
    with pytest.raises(ValueError, match=words):
        check_waits([emulated(one) for one in scenario.configurations()])
