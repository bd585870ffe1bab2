"""One point of the emulation, its VM being only what it says: what is taken, and what is refused."""

import json

import pytest

from scenarios.engines.point import EmulationError, Reader, Task, WrongError, run_point
from scenarios.spec.load import Override, load_scenario
from scenarios.testbed import launch
from topologies.fabric.fabric import FabricSpec, build_fabric

FABRIC = build_fabric(FabricSpec())


@pytest.mark.parametrize("name", ["ring", "path"])
@pytest.mark.parametrize("faults", [(), (0,)], ids=["whole", "with a link down"])
def test_a_ring_or_a_path_that_differs_from_the_plan_ends_the_run(name, faults):
    overrides = [Override("collective.count", 3, "")]
    overrides += [Override("fault", [{"at": "collective 0", "what": "link s0b0-s1b0 down"}], "")] if faults else []
    setting = load_scenario("paper", overrides)
    expected = Reader(Task(0, setting, "wan"), lambda _: None)._expected.of(0, faults)
    row = {"collective": 0, "completion_s": 0.1, "ring": expected.ring.tolist(), "path": expected.path.tolist(),
           "drops": 0, "reembedded": False, "rerouted": True, "start_ns": [0] * 8, "arrived_ns": [[1] * 7] * 8,
           "faults": list(faults)}  # fmt: skip
    took = []
    Reader(Task(0, setting, "wan"), took.append).write(json.dumps(row).encode() + b"\n")
    assert len(took) == 1
    crossing = next(place for place, path in enumerate(row["path"]) if path >= 0)
    another = FABRIC.paths_between[0, 1][(row["path"][crossing] + 1) % 4].index
    changed = {"ring": row["ring"][::-1], "path": [*row["path"][:crossing], another, *row["path"][crossing + 1 :]]}
    with pytest.raises(EmulationError, match=rf"wan, collective 0: the {name} \[.*\] was chosen, and the plan says"):
        Reader(Task(0, setting, "wan"), took.append).write(json.dumps(row | {name: changed[name]}).encode() + b"\n")
    assert len(took) == 1


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("collective 2 delivered wrong data: GPU 5, step 3: byte 9 is wrong", WrongError),
        ("collective 2 was begun 4 times: the process of GPU 3 died", EmulationError),
        ("", EmulationError),
    ],
)
def test_wrong_bytes_in_the_vm_are_never_tried_until_they_are_right(monkeypatch, words, kind):
    def testbed(*_, stderr, **__):
        stderr.write(f"something before it\n{words}\n".encode())
        return 1

    monkeypatch.setattr(launch, "testbed", testbed)
    with pytest.raises(EmulationError, match=words or "something before it") as told:
        run_point(Task(0, load_scenario("paper"), "base"), lambda _: None)
    assert type(told.value) is kind and "after 0 collectives: " in str(told.value)
