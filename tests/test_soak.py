"""What the soak makes of a VM's samples."""

import pytest

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
