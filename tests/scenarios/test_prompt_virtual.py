"""Prompt sessions in virtual time: unscaled rates, and a clock that stops while the prompt waits for a line."""

import json
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pexpect
import psutil
import pytest

from scenarios.engines.prediction import Plan, decisions_of
from scenarios.policies.conditions import conditions_of
from scenarios.spec.load import load_scenario
from tests.conftest import PROJECT, VM
from tests.fakes.processes import descendants
from tests.scenarios.test_prompt import ANSWER_S, COMING_UP_S, RUN, Session, session

_TICKS = os.sysconf("SC_CLK_TCK")
IMPATIENT = """
import sys
from scenarios import run, signals
from scenarios.prompt import session
session._REACTION_S = 2.0
sys.argv[0] = run.__file__
sys.exit(signals.guarded(run.main))
"""
"""The command, but what Ctrl-C does not end is killed after 2 s of processor time instead of 5."""


def now_s(prompt: Session) -> float:
    """Return the virtual time, s."""
    return float(prompt.ask("time").split()[0])


def processor_s(pid: int) -> float:
    """Return the processor time of a process and all its descendants, s."""
    spent = 0
    for one in (pid, *descendants(pid)):
        fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        spent += int(fields[11]) + int(fields[12])
    return spent / _TICKS


def ratios(output: str) -> list[float]:
    """Return the ratios of measured to predicted times."""
    found = re.findall(r"measured ([0-9.]+) (m?s), predicted ([0-9.]+) \2", output)
    return [float(measured) / float(predicted) for measured, _, predicted in found]


def test_a_prompt_session_in_virtual_time_predicts_exactly_and_stops_the_clock_when_idle(vm: VM) -> None:
    often = ("--set", 'policy=[{name = "often", reroute = "every 2"}]')
    options: dict[str, Any] = {"leave": "\x04", "clock": "virtual", "program": ("-c", IMPATIENT)}
    with session(vm, "--gpus", "4", "--out", "kept", *often, **options) as (prompt, banner):
        assert "in virtual time" in banner and "rate scale" not in banner
        assert "has a delay of 500 s" in prompt.ask("delay s0b1>s1b1 500 s")  # tc accepts up to 274 s
        assert "has a delay of 10 us" in prompt.ask("delay s0b1>s1b1 10 us")
        assert ratios(prompt.ask("allgather chunk 8 MB 2")) == pytest.approx([1, 1], abs=1e-3)
        rules_count_what_was_sent(prompt)
        prompt.ask("delay g0>s0b0 1 ms")
        assert "delays that differ between border routers" in prompt.ask("alltoall chunk 8 MB")
        assert ratios(prompt.ask("allgather chunk 8 MB")) == pytest.approx(
            [1], abs=1e-3
        )  # the links are shaped as before
        prompt.ask("delay g0>s0b0 700 ns")
        before_s, spent_s = now_s(prompt), processor_s(prompt.child.pid)
        time.sleep(3)
        assert processor_s(prompt.child.pid) - spent_s < 0.2  # a VM that polled would use a whole core
        assert now_s(prompt) == pytest.approx(before_s, abs=1e-6)
        assert ratios(prompt.ask("allgather chunk 8 MB")) == pytest.approx([1], abs=1e-3)
        assert ratios(prompt.ask("collective alltoall chunk 8 MB")) == pytest.approx([1], abs=1e-2)
        before_s = now_s(prompt)
        assert "(5.0" in prompt.ask("wait 5 s")
        assert now_s(prompt) - before_s == pytest.approx(5, abs=1e-3)
        for link in ("s0b0>s1b0", "s1b0>s0b0"):
            prompt.ask(f"delay {link} 5 ms")
        assert "time=10.0" in prompt.ask("g0 ping -c 2 g2")
        # TCP starts at line rate on the longer path, too, but waits for one of ten round trips after the first 64 kB.
        (share,) = re.findall(r"\((\d+\.\d) %\)", prompt.ask("iperf g0 g2"))
        assert float(share) == pytest.approx(90, abs=1)
        ctrl_c_and_keys(prompt)
        lines_typed_ahead(prompt)
        assert "goes to" in prompt.type("flows s1b\t0\r")
        assert "goes to" in prompt.type("\x1b[A\r")
        prompt.child.send("\x1c")  # Ctrl-\ ends nothing, as in a shell
        assert "Interrupt" in prompt.type("not this\x03")
        assert "allowed: up to 4,000" in prompt.ask("x" * 4050)
        prompt.ask("rate s0b0>s1b0 40 Gbit/s")
        prompt.ask("mode joint")
        (measured,) = re.findall(r"measured (\S+ ms)", prompt.ask("allgather chunk 8 MB"))
        assert "now.toml" in prompt.ask("save now.toml") and "already exists" in prompt.ask("save now.toml")
        prompt.ask("capture g0>g1 leaf.pcap")
        prompt.ask("allgather chunk 8 MB")
        assert re.search(r"g0>g1: \d+ packets", prompt.ask("capture stop"))
    assert sorted(path.name for path in (vm.folder / "kept").iterdir()) == ["files", "leaf.pcap", "now.toml"]
    assert [(vm.folder / "kept/files" / name).read_text() for name in ("named0", "named1")] == ["g0\n", "g2\n"]
    (saved,) = load_scenario(str(vm.folder / "kept" / "now.toml")).configurations()
    conditions = conditions_of(saved)
    (found_s,) = Plan(
        saved, "joint", decisions_of(saved, "joint", conditions, start=0, count=1), conditions
    ).completion_s()
    assert f"{found_s * 1e3:.2f} ms" == measured
    history = (vm.folder / "state" / "longhaul" / "history").read_text()
    assert "flows s1b0\n" in history and (vm.folder / "state" / "longhaul" / "history").stat().st_mode & 0o777 == 0o600


def rules_count_what_was_sent(prompt: Session) -> None:
    """Two AllGathers of 4 GPUs have sent 48 MB from site 0 to site 1, all through s0b0; headers are below 1 %."""
    (shown_mb,) = re.findall(r"^default +site 0 +site 1 +s1b0.* ([\d.]+) MB", prompt.ask("flows s0b0"), re.MULTILINE)
    assert 48 <= float(shown_mb) < 48.5
    for client in ("dpctl", "sh ovs-ofctl"):
        dump = "dump-flows" if client == "dpctl" else "dump-flows s0b0"
        counts = re.findall(r"n_bytes=(\d+)", prompt.ask(f"{client} {dump} -O OpenFlow13"))
        assert max(map(int, counts)) >= 48e6


def ctrl_c_and_keys(prompt: Session) -> None:
    """An endless command races through virtual time; Ctrl-C and typed keys still reach it."""
    prompt.child.sendline("g0 ping g2")
    prompt.child.expect("icmp_seq=20", timeout=ANSWER_S)
    ((sent, received),) = re.findall(r"(\d+) packets transmitted, (\d+) received", prompt.type("\x03"))
    assert int(sent) - int(received) <= 1  # the last packet may be under way
    prompt.child.sendline("allgather chunk 16 MB 100")
    prompt.child.expect("measured", timeout=ANSWER_S)
    assert "aborted" in prompt.type("\x03")
    prompt.child.sendline("run g0: ping g2")
    prompt.child.expect("icmp_seq=20", timeout=ANSWER_S)
    assert "aborted" in prompt.type("\x03")
    files = "__import__('scenarios.program.ranks').program.ranks.RankFiles"
    interrupt = "__import__('os').kill(__import__('os').getpid(), 2)"
    prompt.ask(f"px {files}._layer = lambda *a, f={files}._layer, **k: ({interrupt}, f(*a, **k))")
    assert "aborted" in prompt.ask("run true")  # Ctrl-C while the ranks' files are made
    prompt.ask(f"px {files}._layer = {files}._layer.__kwdefaults__['f']")
    assert "here42" in prompt.ask("run g0: echo here$((6 * 7))")
    assert "here" not in prompt.ask("g0 exit")
    assert "here42" in prompt.ask("g0 echo here$((6 * 7))")  # in a new shell
    for line in ("run sh -c 'while :; do :; done'", "g0 sh -c 'while :; do :; done'", "py [0 for _ in iter(int, 1)]"):
        prompt.child.sendline(line)  # a busy loop: no virtual time passes
        prompt.child.expect(pexpect.TIMEOUT, timeout=0.3)
        prompt.type("\x03")
    prompt.child.sendline("g0 sh -c 'trap \"\" INT; while :; do :; done'")
    prompt.child.expect(pexpect.TIMEOUT, timeout=0.3)
    assert "INT; while :; do :; done` does not react to Ctrl-C, and is killed" in prompt.type("\x03")
    for _ in range(3):  # Ctrl-C while the shell is still starting the command
        prompt.child.sendline("g1 sh -c 'while :; do :; done'")
        prompt.type("\x03")
        assert "here42" in prompt.ask("g1 echo here$((6 * 7))")
    assert "g2: 1" in prompt.ask("run g0,g2: echo $RANK; echo $LONGHAUL_GPU > named$RANK")
    assert "ended with status 3" in prompt.ask("run g1: longhaul-compute 0.5; exit 3")
    assert "re-chosen for one collective in 2" in prompt.ask("policy often")
    assert ratios(prompt.ask("allgather chunk 8 MB")) == pytest.approx([1], abs=1e-3)
    assert ratios(prompt.ask("allgather chunk 8 MB")) == pytest.approx([1], abs=1e-3)
    prompt.child.sendline("g0 cat")
    prompt.child.send("some words\r")
    prompt.child.expect("some words\r\nsome words", timeout=ANSWER_S)  # echoed by the terminal, then printed by cat
    prompt.type("\x04")


def lines_typed_ahead(prompt: Session) -> None:
    """Lines typed while a command runs are kept for the next prompts, and so is an incomplete line."""
    first = prompt.type("allgather chunk 16 MB\rtime\rg1 ec")
    assert ratios(first) == pytest.approx([1], abs=1e-3)
    assert re.search(r"^\d+\.\d+ s$", prompt.type(""), re.MULTILINE)
    assert "42" in prompt.type("ho $((6 * 7))\r").splitlines()


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        # test_program.py covers this for ranks as well.
        pytest.param("run g1,g0: while :; do :; done", r"rank [01] \(`sh -c while", marks=pytest.mark.slow),
        ("g1 sh -c 'while :; do :; done'", "`sh -c while"),
    ],
)
def test_a_program_that_stalls_virtual_time_ends_a_session_without_a_terminal(vm: VM, line: str, cause: str) -> None:
    lines = f"run true\nallgather chunk 8 MB\n{line}\ntime\n".encode()
    asked = ("--cli", "--gpus", "4", "--set", 'program.patience="3 s"', "--set", 'program.memory="2 MB"')
    ended = vm.run(*asked, program=[RUN], input=lines, timeout=400)
    assert ended.status == 1 and ratios(ended.out) == pytest.approx([1], abs=1e-3)
    assert 'program.memory: "2 MB" is too little for the ranks' in ended.out  # the ranks are four shells
    assert re.search(rf"virtual time has stood still for .* as {cause} :; do :; done`", ended.err)


def test_a_prompt_computation_that_ignores_ctrl_c_ends_the_session(vm: VM) -> None:
    prompt = Session(vm, "--gpus", "4", clock="virtual", program=("-c", IMPATIENT))
    prompt.type("", timeout=COMING_UP_S)
    # The sum never returns to the interpreter loop; on a busy machine it begins late.
    prompt.child.sendline('py print("be" + "gun", flush=True) or sum(range(10**12))')
    prompt.child.expect("begun", timeout=ANSWER_S)
    prompt.child.expect(pexpect.TIMEOUT, timeout=1)
    prompt.child.send("\x03")
    prompt.child.expect("as the prompt itself computes or spins: Ctrl-C has not ended it", timeout=ANSWER_S)
    prompt.child.expect(pexpect.EOF, timeout=ANSWER_S)
    prompt.child.close()
    assert prompt.child.exitstatus == 1


ASKING = """
import sys
from pathlib import Path
from scenarios import vm
from scenarios.prompt.dialogue import LineServer
from scenarios.signals import guarded
from topologies.fabric.fabric import FabricSpec, build_fabric
INSIDE = '''
from scenarios.prompt.dialogue import LineClient
asking = LineClient(dict)
while True:
    try:
        print("got", asking.readline(), end="", flush=True)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
'''
def main():
    outside = LineServer(build_fabric(FabricSpec()), at_terminal=True, history=Path("history"))
    try:
        with outside.editing():
            return vm.run([sys.executable, "-c", INSIDE], use_terminal=True, answer=outside)
    except vm.VMError as error:
        sys.exit(str(error))
sys.exit(guarded(main))
"""


def test_ctrl_c_between_lines_keeps_the_session_and_a_killed_vm_ends_it(vm: VM) -> None:
    child = vm.terminal(program=["-c", ASKING], PYTHONPATH=str(PROJECT))
    child.delaybeforesend = None
    child.expect_exact("mininet> ", timeout=COMING_UP_S)
    for number in range(20):
        child.send("a line\r\x03")
        time.sleep(number / 1000)
        child.send("\x03")
    child.send("\rthe last\r")
    child.expect("got the last\r", timeout=ANSWER_S)
    child.expect_exact("mininet> ", timeout=ANSWER_S)
    child.kill(signal.SIGSTOP)
    child.send("\x03")
    time.sleep(0.5)  # the timer's signal becomes due as well
    child.kill(signal.SIGCONT)
    child.expect("Interrupt", timeout=ANSWER_S)
    child.send("half a line")
    time.sleep(0.5)
    of_vm = (one for one in psutil.Process(child.pid).children(recursive=True) if "rootfstype=hostfs" in one.cmdline())
    next(one for one in of_vm if one.name() != "sh").kill()
    child.expect("killed by signal 9", timeout=ANSWER_S)
    child.expect(pexpect.EOF, timeout=ANSWER_S)
    child.close()
    assert child.exitstatus == 1


def test_control_bytes_and_overlong_lines_from_a_pipe_are_answered_line_by_line(vm: VM) -> None:
    lines = b"x" * 10**6 + b"\n\x03\x04\x00\xff\x1b[A\n\ntime\nexit now\x00\nwait 2000000 s\nwait\nallgather chunk 8 MB"
    interrupt_of_no_command = b"g0 true\npy g0.sendInt()\ng0 echo here$((6 * 7))\n"
    ended = vm.run("--cli", "--gpus", "4", program=[RUN], input=interrupt_of_no_command + lines, timeout=400)
    assert ended.status == 1 and "allowed: up to 4,000" in ended.out and "here42" in ended.out
    assert "Traceback" not in ended.out + ended.err


CALM = """
fabric.gpus = [2, 2]
collective.chunk = "4 MB"
[[policy]]
name = "calm"
reroute = "gain 0.1"
reembed = "drift 0.45"
[run]
modes = ["calm"]
"""


def test_policies_and_saved_scenarios_give_the_same_times_at_the_prompt_as_outside(vm: VM) -> None:
    (vm.folder / "calm.toml").write_text(CALM)
    guest = [sys.executable, str(PROJECT / "tests/guest/at_prompt.py"), "calm.toml"]
    ended = vm.run("--", *guest, timeout=400)
    assert ended.status == 0, ended.err
    found = json.loads(ended.out)
    chosen = {name: [row[:2] for row in rows] for name, (rows, _) in found.items()}
    assert all(any(row != rows[0] for row in rows) for name, rows in chosen.items() if name != "saved")
    for at_prompt, outside in found.values():
        assert at_prompt == outside  # to the nanosecond


JOBS = """
[fabric]
gpus = 4
[[job]]
name = "ring"
kind = "allgather"
ranks = [0, 2]
chunk = "8 MB"
[[job]]
name = "late"
kind = "alltoall"
ranks = [1, 3]
start = "1 ms"
chunk = "4 MB"
[[job]]
name = "noise"
kind = "background"
ranks = [1, 3]
pattern = "poisson"
rate = "1 Gbit/s"
duration = "2 ms"
chunk = "100 kB"
"""


def test_rounds_of_a_scenarios_jobs_take_the_predicted_times_over_the_links_as_they_are(vm: VM) -> None:
    (vm.folder / "jobs.toml").write_text(JOBS)
    lines = "rate s0b0>s1b0 10 Gbit/s\nrate s1b0>s0b0 10 Gbit/s\nround\nlink s0b0 s1b0 down\nround\nround 0\nwan\n"
    lines += "rate s0b0>s1b1 1 kbit/s\nround\n"
    ended = vm.run("jobs.toml", "--cli", program=[RUN], input=lines.encode(), timeout=400)
    assert '"0" is not a count; allowed: a whole number from 1 to 1,000' in ended.out
    assert "without its" not in ended.err
    found = re.findall(r"^(\w+): measured ([0-9.]+) ms, predicted ([0-9.]+) ms", ended.out, re.M)
    assert [name for name, *_ in found] == ["ring", "late", "noise"] * 2
    assert [float(took) for _, took, _ in found] == pytest.approx([float(planned) for *_, planned in found], rel=0.03)
    assert float(found[0][1]) > 12.8 / 2 > float(found[3][1])  # two jobs share 10 Gbit/s, then they take another path
    ((last, both),) = re.findall(r"^s0b0>s1b1 .*?([0-9.]+) MB +([0-9.]+) MB$", ended.out, re.M)
    assert float(last) == float(both) > 12  # 8 and 4 MB, after a round over another link
    assert re.search(r"the model predicts \d{4,} s; allowed: up to 3,600 s", ended.out)


def test_an_iteration_of_training_at_the_prompt_takes_the_predicted_time(vm: VM) -> None:
    (vm.folder / "training.toml").write_text(
        '[fabric]\ngpus = 4\n[collective]\nkind = "training"\n[training]\nreplicas = 2\nmicro_batches = 4\n'
    )
    lines = b"round\nallgather chunk 8 MB\nmode wan\nround\n"
    ended = vm.run("training.toml", "--cli", program=[RUN], input=lines, timeout=400)
    found = re.findall(r"^(training|allgather 1)[^:]*: measured \S+ ms, predicted \S+ ms, ratio (\S+)", ended.out, re.M)
    assert found == [("training", "1.000"), ("allgather 1", "1.000"), ("training", "1.000")]


def test_switches_and_ports_have_the_same_identifiers_in_every_boot(vm: VM) -> None:
    """Their order in Open vSwitch follows from them, and from that what a failed link costs."""
    line = b"sh ovs-vsctl --bare --columns=_uuid,name list port\nsh date +%s\n"
    ended = [vm.run("--cli", "--gpus", "4", program=[RUN], input=line, timeout=400) for _ in range(2)]
    (first, *dates), (second, *_) = [one.out.rsplit("\n", 2) for one in ended]
    assert first == second and first.count("s0l0-eth1") == 1
    assert abs(int(dates[0]) - time.time()) < 300  # programs see the host's date nevertheless
