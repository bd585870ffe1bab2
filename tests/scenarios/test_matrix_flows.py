"""A load that is sent: demands between sites are messages of a background job, and all others are taken from rates."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from hosts.collectives.background import MAX_MESSAGES, matrix_traffic
from hosts.collectives.schedule import Flow, ScheduleError
from scenarios.api import run
from scenarios.spec import ScenarioError
from scenarios.spec.load import resolved, scenario_of
from scenarios.spec.scenario import Scenario
from tests.topologies.test_background_load import rates
from tests.topologies.test_packs import WANTED, data, xml

__all__ = ["data"]

FABRIC = """
[fabric]
gpus = [2, 1]
border_routers = 1
wan = "sndlib:geant.xml"
sites = ["uk1.uk", "it1.it"]
[conditions]
wan_rate = "100 Gbit/s"
intra_rate = "100 Gbit/s"
[collective]
chunk = "1 MB"
count = 4
emulated = 4
[run]
modes = ["base"]
"""
LOAD = '[conditions.load]\nmatrices = "matrices:matrices"\n'
FLOWS = f'{LOAD}as = "flows"\n'
RING = "[[job]]\nranks = [0, 2]\n"
SENDER = '[[job]]\nkind = "background"\npattern = "matrix"\nduration = "10 ms"\nchunk = "10 kB"\n'
MINUTES = (5, 10, 10, 20)  # that of 15 is missing


def declared(data: Path, text: str) -> Scenario:
    return scenario_of(FABRIC + text, path=data / "mine.toml")


def test_rates_lack_what_is_sent_between_others_alone_and_rounds_send_the_rest(data: Path) -> None:
    sent = declared(data, FLOWS + RING + SENDER)
    assert resolved(scenario_of(resolved(sent))) == resolved(sent)
    (between,) = (ends for ends in WANTED if ends[0] == "fr1.fr")
    (data / "others").mkdir()
    for file in (data / "matrices").iterdir():
        minutes = int(file.stem[-2:])
        (data / "others" / file.name).write_text(xml({between: WANTED[between] * minutes}))
    of_others = declared(data, LOAD.replace("matrices:matrices", "matrices:others") + RING)
    expected, plain = rates(of_others, 4), rates(declared(data, LOAD + RING), 4)
    for name, found in rates(sent, 4).items():
        assert found == pytest.approx(expected[name], abs=1), name
    assert any((plain[name] < expected[name]).all() for name in plain)
    for number, minutes in enumerate(MINUTES):
        schedule = sent.of_round(number).workload.schedule
        carried = Counter[tuple[int, int]]()
        for transfer in schedule.transfers:
            flow = schedule.flows[transfer.flow]
            if isinstance(flow, Flow) and transfer.size == 10_000:
                carried[flow.src, flow.dst] += int(transfer.size)
        # Both hosts of site 0 send to the one of site 1, which sends as much to each: half of the demand for 10 ms.
        for pairs, mbit in ((((0, 2), (1, 2)), 30.5), (((2, 0), (2, 1)), 12.0)):
            for pair in pairs:
                assert carried[pair] == pytest.approx(mbit * 1e6 * minutes / 2 * 10e-3 / 8, abs=10_000)
        assert schedule.flows == sent.workload.schedule.flows
    assert declared(data, FLOWS + RING + SENDER).heaviest_round == 4  # of minute 25, behind the rounds that are run


def test_messages_of_a_matrix_are_evenly_spaced_and_as_many_as_can_be_checked() -> None:
    bps = ((0.0, 8e6, 0.0), (0.0, 0.0, 0.0), (4e6, 0.0, 0.0))
    found = matrix_traffic(bps, sites=(0, 0, 1, 1, 2), message_bytes=1000, duration_s=1.0, seed=(1,))
    waits = {number: transfer.size for number, transfer in enumerate(found.schedule.transfers) if not transfer.after}
    sent = Counter(found.schedule.flows[one.flow] for one in found.schedule.transfers if one.after)
    assert sent == {Flow(0, 2): 500, Flow(1, 3): 500, Flow(4, 0): 250, Flow(4, 1): 250}
    assert len(waits) == 1500
    of_first = [
        waits[number] for number in waits if found.schedule.flows[found.schedule.transfers[number].flow].place == 0
    ]
    assert np.ptp(of_first[1:]) < 1e-8 and of_first[1] == pytest.approx(2e-3)
    with pytest.raises(ScheduleError, match=f"allowed: {MAX_MESSAGES:,}"):
        matrix_traffic(bps, sites=(0, 1, 2), message_bytes=10, duration_s=1.0, seed=(1,))


@pytest.mark.parametrize(
    "text,says",
    [
        (
            FLOWS + RING,
            "conditions.load.as: flows are sent by one job; allowed: one of kind background with the pattern",
        ),
        (FLOWS + RING + SENDER * 2, "conditions.load.as: flows are sent by one job"),
        (LOAD + RING + SENDER, 'job[2].pattern: matrix needs a load; allowed: with conditions.load.as = "flows"'),
        (RING + SENDER, "job[2].pattern: matrix needs a load"),
        (FLOWS + RING + SENDER + "ranks = [0, 1]\n", "job[2].ranks: [0, 1] has no GPU of site 1; allowed: one of each"),
        (FLOWS + RING + SENDER + 'rate = "1 Gbit/s"\n', "job[2].rate: is given, but a matrix has the rates; allowed"),
        (FLOWS + RING + SENDER.replace('"10 ms"', '"100 s"'), "a matrix of about"),
        (LOAD + 'as = "packets"\n', 'conditions.load.as: "packets" is not allowed; allowed: rates or flows'),
    ],
)
def test_what_cannot_be_sent_is_refused(data: Path, text: str, says: str) -> None:
    with pytest.raises(ScenarioError) as refused:
        declared(data, text)
    (line,) = refused.value.mistakes
    assert says in line and "; allowed: " in line


@pytest.mark.filterwarnings("ignore")
def test_measured_rounds_beside_a_matrix_take_the_predicted_time_which_is_longer_than_without(data: Path) -> None:
    """The ring's messages share the cable into the GPU of site 1, and a WAN link, with 305 to 610 Mbit/s."""
    ring = RING.replace("[[job]]", '[[job]]\nchunk = "4 MB"')
    text = FLOWS.replace("matrices:matrices", "matrices:many") + ring
    text += SENDER.replace('"10 kB"', '"100 kB"').replace('"10 ms"', '"20 ms"')
    (data / "many").mkdir()
    for file in (data / "matrices").iterdir():
        minutes = int(file.stem[-2:])
        (data / "many" / file.name).write_text(xml({ends: 4 * mbit * minutes for ends, mbit in WANTED.items()}))
    found = run(declared(data, text), "emulation", progress=lambda *_: None)
    assert (found.completion_s / found.predicted_s - 1).abs().max() < 3e-3 and found.drops.sum() == 0
    alone = run(declared(data, ring), progress=lambda *_: None)
    assert (found.completion_s.to_numpy() > alone.completion_s.to_numpy()).any()
