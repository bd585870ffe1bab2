"""Messages that wait long at slow WAN links: TCP takes none for lost, and times are the model's from the first on."""

import sys

import pandas as pd
import pytest

from hosts.agent.transport import Transport, rto_min_s
from tests.fakes.runs import measured, rows
from tests.scenarios.test_program import program


def test_timeouts_grow_only_where_waits_exceed_the_settings_and_stay_below_linux_s_longest():
    assert rto_min_s(Transport(), wait_s=0.15) is None
    assert rto_min_s(Transport(), wait_s=1.0) > 1.0
    assert rto_min_s(Transport(rto_min_s=1.0), wait_s=0.7) is None
    assert 0.06 < rto_min_s(Transport(rto_min_s=0.01), wait_s=0.06) < 0.2
    assert rto_min_s(Transport(), wait_s=1e6) < 120


def test_messages_that_wait_longer_than_tcp_s_timeout_are_sent_once_and_take_the_predicted_time(tmp_path):
    """8 MB at 0.2 Gbit/s take 320 ms, and the opposite direction's acknowledgements wait behind them. In joint all
    connections are new before every collective here."""
    measured(
        tmp_path / "run",
        *("--engine", "emulation", "--modes", "joint", "--collectives", "3", "--wan-delay", "20 ms"),
        sets=("fabric.gpus=[2, 3]", "conditions.wan_rate=0.2-0.4 Gbit/s", "collective.reembed_every=1"),
        collectives=3,
        p99=2e-4,
    )
    assert rows(tmp_path / "run").retransmitted_bytes.to_list() == [0, 0, 0]


@pytest.mark.slow
@pytest.mark.parametrize("rate", ["0.2-2 Gbit/s", "1 Gbit/s"])
@pytest.mark.parametrize("delay", ["5 ms", "80 ms"])
def test_all_modes_take_the_predicted_time_on_slow_wans_from_the_first_collective_on(tmp_path, rate, delay):
    sets = ("fabric.gpus=[2, 3]", f"conditions.wan_rate={rate}", "collective.reembed_every=3")
    wanted = ("--engine", "emulation", "--collectives", "5", "--wan-delay", delay)
    found = measured(tmp_path / "run", *wanted, sets=sets, collectives=20, p99=2e-4)
    assert found["fidelity"]["retransmitted_bytes"] == 0 and found["fidelity"]["warnings"] == []


EXCHANGE = """
import os, socket, threading
rank, hosts, size = int(os.environ["RANK"]), os.environ["LONGHAUL_HOSTS"].split(), 8_000_000
with socket.create_server(("", 7000)) as server:
    made = [socket.create_connection((hosts[0], 7000)) if rank else server.accept()[0] for _ in range(2)]

def receive(connection):
    left = size
    while left:
        left -= len(connection.recv(min(left, 1 << 20)))

for _ in range(2):
    works = [threading.Thread(target=one.sendall, args=(bytes(size),)) for one in made]
    works += [threading.Thread(target=receive, args=(one,)) for one in made]
    for work in works:
        work.start()
    for work in works:
        work.join()
"""


@pytest.mark.parametrize("queue", ["fair", "fifo"])
def test_a_program_whose_messages_wait_in_queues_resends_nothing(tmp_path, queue):
    """16 MB at 0.2 Gbit/s take 640 ms in each direction, before the acknowledgements of the other in a fifo queue."""
    (tmp_path / "mine.py").write_text(EXCHANGE)
    sets = (
        "fabric.gpus=[2, 3]",
        "program.ranks=[0, 2]",
        'conditions.wan_rate="0.2 Gbit/s"',
        f'transport.queue="{queue}"',
    )
    asked = [word for one in sets for word in ("--set", one)]
    found, _ = program(tmp_path, f"{sys.executable} mine.py", "--wan-delay", "20 ms", *asked)
    assert [one["status"] for one in found["ranks"]] == [0, 0]
    assert [one["retransmitted_segments"] for one in found["ranks"]] == [0, 0]


ANSWERED = """
import os, socket, threading, time
import longhaul
rank, hosts, size = int(os.environ["RANK"]), os.environ["LONGHAUL_HOSTS"].split(), 20_000_000
if rank < 2:
    other, _ = socket.create_server(("", 7000)).accept()
else:
    time.sleep(0.1)
    other = socket.create_connection((hosts[rank - 2], 7000))
other.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
for _ in range(4):
    began, left = time.monotonic(), size
    sender = threading.Thread(target=other.sendall, args=(bytes(size),))
    sender.start()
    while left:
        left -= len(other.recv(min(left, 1 << 20)))
    sender.join()
    other.sendall(b"k")
    other.recv(1)
    longhaul.report(step=time.monotonic() - began)
"""


@pytest.mark.parametrize("captured", [(), ("--capture", "s1b0>s0b0")])
def test_a_short_answer_is_sent_at_once_behind_a_long_message_captured_or_not(tmp_path, captured):
    """Twice 20 MB each way at 40 Gbit/s take 8 ms, and they and the answers 20 ms each to arrive. Answers were held
    back until the message before them had arrived, so that a step took up to 80 ms."""
    (tmp_path / "mine.py").write_text(ANSWERED)
    sets = ("fabric.gpus=[2, 2]", 'conditions.wan_rate="40 Gbit/s"', 'conditions.intra_rate="100 Gbit/s"')
    asked = [word for one in sets for word in ("--set", one)] + ["--wan-delay", "20 ms"]
    program(tmp_path, f"{sys.executable} mine.py", *asked, *captured)
    steps = pd.read_csv(tmp_path / "run" / "steps.csv")
    later = steps[steps.step > 0].step_s  # the first waits for the connection
    assert later.to_list() == pytest.approx([0.048] * 12, rel=1e-3)
