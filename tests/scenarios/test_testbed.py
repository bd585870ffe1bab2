"""A collective on a testbed with fake parts: the contents of its record and of the record's JSON."""

from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from controller.api.client import RouteReply
from hosts.communicator import Completed
from hosts.communicator import Fault as WrongMessage
from scenarios.policies.play import play
from scenarios.policies.policy import MODES
from scenarios.spec.faults import Fault
from scenarios.spec.load import load_scenario
from scenarios.spec.scenario import Scenario
from scenarios.testbed import testbed
from scenarios.testbed.point_run import PointRun
from scenarios.testbed.testbed import WrongDataError

SLOW = Fault(collective=0, kind="agent slow", target="1", amount=2.0)
ARRIVED_NS = tuple(100 * step + rank for step in range(1, 8) for rank in range(8))


def bed(*, drops: dict[str, int] | None = None, faults: tuple[WrongMessage, ...] = ()) -> testbed.Testbed:
    """A testbed whose controller puts every crossing on the second path with 3 messages."""
    found: Any = testbed.Testbed(load_scenario("paper"))
    found._shaper = SimpleNamespace(change=lambda _: None)
    found.controller = SimpleNamespace(alive=lambda: True)
    second = found.fabric.paths_between[0, 1][1].index
    found._controller = SimpleNamespace(
        route=lambda *, crossings, **_: RouteReply(paths=(second,) * len(crossings), messages=3, took_s=1.0)
    )
    arrived = tuple(at + 5 for at in ARRIVED_NS)
    result = Completed(collective=0, start_ns=(5,) * 8, sent_ns=(5,) * len(arrived), arrived_ns=arrived, faults=faults)
    found._communicator = SimpleNamespace(
        connect=lambda _, **__: None, run=lambda **_: result, retransmitted_bytes=lambda: 0
    )
    found._drops, found._timer_latency = SimpleNamespace(drops=lambda: drops or {}), None
    return found  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("mode", "messages"),
    [("base", [3, None, None]), ("wan", [3, 3, 3]), ("ccl", [3, None, 3]), ("joint", [3, 3, 3])],
)
def test_reconfiguration_time_and_messages_are_recorded_only_where_routes_changed(
    monkeypatch: pytest.MonkeyPatch, mode: str, messages: list[int | None]
) -> None:
    clock = iter(range(0, 10**6, 250))
    monkeypatch.setattr(testbed.time, "monotonic_ns", lambda: next(clock))
    up = bed()
    point = PointRun(up, MODES[mode])
    every = [outcome.record.as_json() for outcome in play(point, point.player, range(11))]
    found = [every[0], every[1], every[10]]
    assert [one.get("reconfigure_messages") for one in found] == messages
    assert [one.get("reconfigure_s") for one in found] == [None if count is None else 250e-9 for count in messages]


@pytest.mark.parametrize(("size", "connected", "totals"), [(None, 1, [700, 700, 950]), (10**6, 3, [700, 0, 250])])
def test_retransmitted_bytes_are_recorded_per_collective_in_every_queue(
    size: int | None, connected: int, totals: list[int]
) -> None:
    """With finite buffers every collective opens new connections, whose counters begin at 0."""
    up: Any = bed()
    if size is not None:
        up.config = up.config.with_values({"transport.queue": "fifo", "fabric.buffer": size})
    found, joined = iter(totals), []
    up._communicator.retransmitted_bytes = lambda: next(found)
    up._communicator.connect = lambda placement, **_: joined.append(placement)
    records = list(PointRun(up, MODES["base"]).records(range(3)))
    assert [record.retransmitted_bytes for record in records] == [700, 0, 250]
    assert records[2].as_json()["retransmitted_bytes"] == 250
    assert len(joined) == connected


def test_without_a_controller_the_ring_is_still_chosen_and_paths_are_the_default_ones() -> None:
    up: Any = bed()
    up.config = replace(up.config, faults=(SLOW,) * 3)
    up.controller = SimpleNamespace(alive=lambda: False)
    point = PointRun(up, MODES["joint"])
    decide = partial(point.player.decide, 0)
    record = point.collective(0, decide, attempt=2, in_force=(0, 2), reroute=True, undisturbed=lambda _: False).record
    assert (record.reembedded, record.rerouted, record.reconfigure_messages) == (True, False, 0)
    assert (record.faults, record.undisturbed) == ((0, 2), False)
    assert {path for path in record.path if path >= 0} <= {up.fabric.paths_between[a, 1 - a][0].index for a in (0, 1)}


def test_wrong_data_raises_an_error_that_names_collective_transfer_and_byte() -> None:
    wrong = WrongMessage(rank=5, task=3, src=2, text="byte 9 of slot 1 is wrong")
    said = "collective 7 delivered wrong data: GPU 5, transfer 3 from GPU 2: byte 9 of slot 1 is wrong"
    point = PointRun(bed(faults=(wrong,)), MODES["base"])
    with pytest.raises(WrongDataError, match=said):
        list(play(point, point.player, (7,)))


@pytest.mark.parametrize(
    ("setting", "fair_links", "allows"),
    [
        (load_scenario("paper"), ("a", "b"), True),
        (load_scenario("paper"), None, False),  # fifo, the wall clock, the prompt, and where nothing is shared
        (replace(load_scenario("paper"), faults=(SLOW,)), ("a", "b"), False),
    ],
)
def test_packet_reordering_is_allowed_only_with_fair_queues_and_without_faults(
    monkeypatch: pytest.MonkeyPatch, setting: Scenario, fair_links: tuple[str, ...] | None, allows: bool
) -> None:
    found, up = list[int](), testbed.Testbed(setting, fair_links=fair_links)
    monkeypatch.setattr(testbed, "inside", lambda _: nullcontext())
    monkeypatch.setattr(testbed, "allow_overtaking", lambda: found.append(1))
    for name in ("_windows", "_set_windows"):
        monkeypatch.setattr(up, name, lambda _: None)
    up.network = SimpleNamespace(pids_here=dict.fromkeys(range(8), 1))  # type: ignore[assignment]
    up.set_queues()
    assert len(found) == 8 * allows
