"""What the soak makes of a VM's samples."""

import json

import pytest

from scenarios import soak, vm
from scenarios.soak import Cost, Growth, Sample, growths


def samples(*, pace: float = 1.0, slower: float = 1.0, memory: float = 1.0) -> list[Sample]:
    """Samples of five hundred collectives of 0.2 s; in the last hundred the machine's pace, the collectives, and the
    memory of one kind of process are so many times what they were."""
    now, found = 0.0, []
    for done in range(0, 600, 100):
        at_end = done == 500
        now += 0 if done == 0 else 100 * 0.2 * (pace * slower if at_end else 1)
        before = Cost(2 * now, now)
        now += 1.5 * (pace if done >= 400 else 1)
        kb = {"agents": int(20_480 * (memory if at_end else 1)), "small": 100 * (1 + at_end)}
        found.append(Sample(done, kb, before, Cost(2 * now, now)))
    return found


def found(**changes: float) -> dict[str, Growth]:
    return {line.name: line for line in growths(samples(**changes))}


def test_a_machine_that_changes_its_pace_is_not_taken_for_a_growth() -> None:
    lines = found(pace=3)
    assert lines["processor time of a collective"].share == pytest.approx(2)
    assert not lines["processor time of a collective"].counts
    assert lines["processor time in yardsticks"].counts
    assert lines["processor time in yardsticks"].share == pytest.approx(0)


def test_collectives_that_take_longer_are_a_growth_at_any_pace() -> None:
    assert found(slower=1.25)["processor time in yardsticks"].share == pytest.approx(0.25)
    assert found(slower=1.25, pace=0.4)["processor time in yardsticks"].share == pytest.approx(0.25)


def test_memory_counts_but_for_what_is_small() -> None:
    line = found(memory=1.5)["memory: agents"]
    assert line.counts and str(line) == "| memory: agents | 20.0 MB | 30.0 MB | +50.0% |"
    assert "memory: small" not in found()
    assert all(line.share == pytest.approx(0) for line in found().values())


def said(monkeypatch, *, pace=1.0, kb=20_480, status=0):
    """Have the VM say six samples: a collective has cost 0.2 s, in the last hundred `pace` times that."""
    clock = {"now": 0.0}
    monkeypatch.setattr(soak.time, "monotonic", lambda: 2 * clock["now"])
    monkeypatch.setattr(soak, "_processor_s", lambda _: clock["now"])

    def run(command, *, stdout, **_):
        assert command[-2:] == ["--collectives", "500"] and "--inside" in command
        for done in range(0, 600, 100):
            clock["now"] += 0 if done == 0 else 20 * (pace if done == 500 else 1)
            stdout.write(b"{}\n")
            clock["now"] += 1.5
            line = json.dumps({"done": done, "memory_kb": {"agents": kb if done == 500 else 20_480}}).encode() + b"\n"
            stdout.write(line[:7])  # as a pipe may cut it
            stdout.write(line[7:])
        return status

    monkeypatch.setattr(vm, "run", run)
    return soak.soak(500)


@pytest.mark.parametrize(
    ("change", "status"), [({}, 0), ({"pace": 1.09}, 0), ({"pace": 1.12}, 1), ({"kb": 22_400}, 0), ({"kb": 22_600}, 1)]
)
def test_what_grows_by_more_than_a_tenth_fails(monkeypatch, capsys, change, status):
    assert said(monkeypatch, **change) == status
    table = capsys.readouterr().out.splitlines()
    assert table[0] == "| after 500 collectives | after the first 100 | at the end | growth |"
    if not change:
        assert table[2:] == [
            "| memory: agents | 20.0 MB | 20.0 MB | +0.0% |",
            "| wall time of a collective | 0.400 s | 0.400 s | +0.0% |",
            "| processor time of a collective | 0.200 s | 0.200 s | +0.0% |",
            "| processor time in yardsticks | 0.133 yd | 0.133 yd | +0.0% |",
        ]


def test_a_vm_that_fails_is_the_soaks_own_failure(monkeypatch):
    assert said(monkeypatch, status=3) == 3
