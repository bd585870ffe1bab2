"""Attribution of detections, lost collectives and recoveries to faults: synthetic events, and those of a real run."""

import json
from pathlib import Path
from typing import Any

import pytest

from analysis.statistics.fault_outcomes import fault_outcomes

STORED = Path(__file__).parent.parent / "fakes" / "fault_events.json"
LEAF = ("g0-s0l0", "g1-s0l0", "s0l0-s0p0", "s0l0-s0p1")


def injected(kind: str, *, fault: int = 0, at_ns: int = 0, cables: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"event": "injected", "collective": 1, "at_ns": at_ns, "fault": fault, "kind": kind, "what": kind,
            "cables": list(cables)}  # fmt: skip


def failed(at_ns: int, why: str = "the process of GPU 3 died", *, lost: int = 1, sent: int = 0) -> dict[str, Any]:
    return {"event": "failed", "collective": 1, "at_ns": at_ns, "why": why, "lost": lost, "retransmitted_bytes": sent}


def restarted(what: str, at_ns: int, *, detected_ns: int | None = None) -> dict[str, Any]:
    detected_ns = at_ns if detected_ns is None else detected_ns
    return {"event": "restarted", "collective": 1, "what": what, "at_ns": at_ns, "detected_ns": detected_ns}


def event(kind: str, at_ns: int = 0, **fields: object) -> dict[str, Any]:
    return {"event": kind, "collective": 1, "at_ns": at_ns, **fields}


def outages(*listed: tuple[int, int, tuple[str, ...], tuple[str, ...]]) -> dict[str, Any]:
    forms = [{"seen_ns": s, "done_ns": d, "died": list(died), "back": list(back)} for s, d, died, back in listed]
    return event("outages", outages=forms)


def test_events_of_a_real_run_give_the_outcomes_recorded_with_it() -> None:
    """An emulated run with a link, a switch and an agent fault; its outcomes were stored together with its events."""
    stored = json.loads(STORED.read_text())
    # The events do not have the times for these.
    unknown = dict.fromkeys(("cost_s", "gained_s", "lasting_cost_s", "costs", "jobs", "as_before"))
    untils = [2, 3, 6]  # the collectives of the events "over" and, of an agent, "ended"
    wanted = [outcome | unknown | {"until": until} for outcome, until in zip(stored["outcomes"], untils, strict=True)]
    assert fault_outcomes(stored["events"]) == wanted


FALLS = [
    # seen_ns, done_ns, cables that died, cables that came back: the cables of a leaf; no rule uses the first one
    (10, 10, LEAF[:1], ()), (20, 0, LEAF[1:], ()), (30, 50, LEAF[1:], ()),
]  # fmt: skip
RISES = [(900, 910, (), LEAF[:1]), (910, 930, (), LEAF[1:])]
EARLIER = [(-20, -10, LEAF[:2], ()), (2, 3, (), LEAF[:2])]  # of an earlier fault, whose end is seen late
OTHER = [(5, 500, ("s0b0-s1b0",), ()), (940, 990, ("s0b0-s1b0",), ())]


@pytest.mark.parametrize(
    ("listed", "lost", "recovered_ns"),
    [
        (FALLS, 0, 50),
        (FALLS[:2], 0, None),  # a detour that is not complete yet
        (FALLS + RISES, 0, 50),
        (EARLIER + FALLS, 0, 50),
        (EARLIER, 0, None),
        (FALLS[:2] + RISES, 0, 930),  # no detour was complete before the switch was back
        (FALLS + RISES, 1, 930),  # the detour did not help
        (FALLS, 1, 50),  # the detour helped in the end
        (FALLS[:2], 1, 2000),  # no detour was complete, and yet the collective was
        (OTHER, 0, None),
    ],
)
def test_a_switch_fault_recovers_when_all_its_cables_are_avoided_or_back_up(
    listed: list[Any], lost: int, recovered_ns: int | None
) -> None:
    completed = [event("completed", 2000), event("ended", why="")]
    events = [injected("switch down", cables=LEAF), *[failed(60)] * lost]
    (row,) = fault_outcomes([*events, outages(*sorted(OTHER[:1] + listed)), *completed])
    assert row["outcome"] == ("masked" if recovered_ns is None else "recovered")
    assert row["recovered_s"] == (None if recovered_ns is None else recovered_ns / 1e9)
    assert row["collectives_lost"] == lost
    if listed[0] in FALLS:
        assert row["detected_s"] == 10 / 1e9


def test_two_faults_of_the_same_link_each_get_their_own_detection_and_recovery() -> None:
    link = ("s0b0-s1b0",)
    found = fault_outcomes(
        [
            injected("link down", cables=link), outages((10, 30, link, ())), event("over", 100, fault=0),
            injected("link down", fault=1, at_ns=1000, cables=link),
            outages((10, 30, link, ()), (101, 120, (), link), (1005, 1025, link, ())), event("ended", why=""),
        ]
    )  # fmt: skip
    assert [(row["number"], row["detected_s"], row["recovered_s"]) for row in found] == [
        (1, 10e-9, 30e-9),
        (2, 5e-9, 25e-9),
    ]


def test_an_outage_seen_after_a_second_fault_of_the_same_link_is_not_that_of_the_first() -> None:
    link = ("s0b0-s1b0",)
    cuts = [injected("link down", fault=number, at_ns=1000 * number, cables=link) for number in (0, 1)]
    found = fault_outcomes([*cuts, outages((1005, 1025, link, ())), event("ended", why="")])
    assert [(row["outcome"], row["detected_s"]) for row in found] == [("masked", None), ("recovered", 5e-9)]


def test_failed_collectives_are_blamed_on_killed_agents_in_the_order_of_their_deaths() -> None:
    killed = [injected("agent killed", fault=number, at_ns=10 * number) for number in (0, 1)]
    found = fault_outcomes([*killed, failed(100, sent=7), failed(200, sent=5), event("ended", why="")])
    assert [(row["bytes_again"], row["detected_s"]) for row in found] == [(7, 100e-9), (5, 190e-9)]


def test_a_failed_collective_is_blamed_on_a_killed_agent_else_on_a_link_that_is_down() -> None:
    cut = injected("link down", cables=("s0b0-s1b0",))
    killed = injected("agent killed", fault=1, at_ns=100)
    over = event("over", 500, fault=0)
    found = fault_outcomes(
        [
            cut, killed, failed(200, sent=7), restarted("agents", 300), failed(400, sent=5), over,
            failed(600, "not declared", sent=3), restarted("agents", 700), event("completed", 800),
            event("retransmitted", 900, retransmitted_bytes=1000), event("ended", why=""),
        ]
    )  # fmt: skip
    rows = [(row["what"], row["collectives_lost"], row["bytes_again"], row["detected_s"]) for row in found]
    assert rows == [
        ("link down", 1, 5, 0.0),
        ("agent killed", 1, 7, 100e-9),
        ("not declared", 1, 1003, 0.0),
    ]
    assert [row["number"] for row in found] == [1, 2, 0]
    assert [row["recovered_s"] for row in found] == [800e-9, 200e-9, 100e-9]


def test_a_controller_restart_without_a_declared_kill_is_an_undeclared_fault() -> None:
    again = restarted("controller", 900, detected_ns=400)
    (row,) = fault_outcomes([injected("controller killed"), again, event("ended", why="")])
    assert (row["number"], row["detected_s"], row["recovered_s"]) == (1, 400e-9, 900e-9)
    (row,) = fault_outcomes([again, event("ended", why="")])
    assert (row["number"], row["what"], row["recovered_s"]) == (0, "the controller has died", 500e-9)


def test_a_fault_without_recovery_when_the_run_ends_with_an_error_is_aborted() -> None:
    lost = [failed(at_ns, "try") for at_ns in (10, 20)]
    found = fault_outcomes([injected("agent killed"), restarted("agents", 5), *lost, event("ended", why="it failed")])
    assert [row["outcome"] for row in found] == ["recovered", "aborted: it failed"]
    assert found[1]["collectives_lost"] == 2 and found[1]["recovered_s"] is None
    detour = outages((10, 30, LEAF[:1], ()))
    cut = [injected("link down", cables=LEAF[:1]), failed(50), detour, event("ended", why="it failed")]
    assert [(row["outcome"], row["detected_s"]) for row in fault_outcomes(cut)] == [("aborted: it failed", 10e-9)]
    (slow,) = fault_outcomes([injected("agent slow"), event("ended", why="")])
    assert (slow["outcome"], slow["detected_s"]) == ("masked", None)


def test_the_cost_of_a_fault_is_the_time_lost_by_the_collectives_it_hit_with_their_failed_attempts() -> None:
    """A link is down before collectives 1 to 3; an agent is killed in collective 2, whose first attempt fails after
    0.5 s. Collective 4 is hit by nothing."""
    later_s = {0: 0.0, 1: 0.1, 2: 0.02, 3: 0.003, 4: 7.0}
    down, killed = injected("link down", cables=("s0b0-s1b0",)), injected("agent killed", fault=1, at_ns=5)
    events = [
        down,
        killed | {"collective": 2},
        failed(9) | {"collective": 2, "spent_ns": 500_000_000},
        restarted("agents", 10) | {"collective": 2},
        event("over", 20, fault=0) | {"collective": 4},
        event("ended", why=""),
    ]
    link, agent = fault_outcomes(events, later_s)
    assert link["cost_s"] == pytest.approx(0.1 + 0.02 + 0.5 + 0.003)
    assert agent["cost_s"] == pytest.approx(0.02 + 0.5)
    assert fault_outcomes([down, event("ended", why="")], later_s)[0]["cost_s"] == pytest.approx(7.123)  # to the end


def test_a_cost_is_told_by_collective_with_the_part_that_lasts() -> None:
    """In collective 1 the link fails, and 2 begins without it: of 20 ms, 15 are predicted for the paths that are left.
    Collective 3 runs after the link is back. The agent's failed attempt in collective 2 is not a lasting cost."""
    later_s, lasting_s = {0: 0.0, 1: 0.1, 2: 0.02, 3: 0.003}, {0: 0.0, 1: 0.0, 2: 0.015, 3: 0.0}
    events = [
        injected("link down", cables=("s0b0-s1b0",)),
        failed(9) | {"collective": 2, "spent_ns": 500_000_000},
        event("over", 20, fault=0) | {"collective": 3},
        event("ended", why=""),
    ]
    (row,) = fault_outcomes(events, later_s, lasting_s)
    assert [(one["collective"], pytest.approx(one["cost_s"]), one["lasting_cost_s"]) for one in row["costs"]] == [
        (1, 0.1, 0.0),
        (2, 0.52, 0.015),
    ]
    assert (row["cost_s"], row["lasting_cost_s"]) == (pytest.approx(0.62), 0.015)
    (long,) = fault_outcomes(events[:1] + events[-1:], dict.fromkeys(range(1, 400), 0.01))
    assert [one["collective"] for one in long["costs"]] == [*range(1, 101)] and long["cost_s"] == pytest.approx(3.99)
