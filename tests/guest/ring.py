"""Runs inside the VM: GPUs' hosts on one Linux bridge, with a communicator that runs collectives on them.

`python -m tests.guest.ring JOBS`: JOBS is a JSON object whose values are [FUNCTION, OPTIONS], a function below and its
arguments; prints an object with the same keys and the functions' results. The port towards a GPU has the rate and delay
that are given; all other ports, and the hosts, are infinitely fast.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hosts.agent.transport import CongestionControl, Transport
from hosts.collectives.kinds import Workload, workload
from hosts.communicator import CollectiveError, Communicator, Flip
from topologies.fabric.fabric import Fabric, FabricSpec, build_fabric

MTU = 9000
_CLONE_NEWNET = 0x40000000


def run(*lines: str, program: str, pid: int | None = None) -> None:
    """Run these lines as one batch of `ip` or `tc`, in the network namespace of a process."""
    subprocess.run([*network(pid), program, "-batch", "-"], input="\n".join(lines), text=True, check=True)


def shown(pid: int, *command: str) -> list[str]:
    """Return the lines that a command prints in the network namespace of a process."""
    return subprocess.run([*network(pid), *command], stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()


def network(pid: int | None) -> list[str]:
    return [] if pid is None else ["nsenter", f"--net=/proc/{pid}/ns/net"]


def host() -> int:
    """Start a process that does nothing, in a new network namespace; return its id."""
    pid = os.fork()
    if pid == 0:
        ctypes.CDLL(None).unshare(_CLONE_NEWNET)
        os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(0)
    os.waitpid(pid, os.WUNTRACED)
    return pid


@contextmanager
def hosts(fabric: Fabric) -> Iterator[list[int]]:
    """Yields the process ids of a host for every GPU, all on one bridge, whose ports are called p0, p1 ..."""
    pids = [host() for _ in fabric.gpus]
    lines = [f"link add bridge mtu {MTU} type bridge", "link set bridge up"]
    for gpu, pid in zip(fabric.gpus, pids, strict=True):
        peer = f"peer name {gpu.interface} mtu {MTU} address {gpu.mac} netns {pid}"
        lines += [f"link add p{gpu.rank} mtu {MTU} type veth {peer}", f"link set p{gpu.rank} master bridge up"]
    run(*lines, program="ip")
    for gpu, pid in zip(fabric.gpus, pids, strict=True):
        lines = [f"addr add {gpu.ip}/8 dev {gpu.interface}", f"link set {gpu.interface} up"]
        for other in fabric.gpus[: gpu.rank] + fabric.gpus[gpu.rank + 1 :]:
            lines.append(f"neigh add {other.ip} lladdr {other.mac} dev {gpu.interface} nud permanent")
        run(*lines, program="ip", pid=pid)
    try:
        yield pids
    finally:
        run(*(f"link del {port}" for port in ("bridge", *(f"p{gpu.rank}" for gpu in fabric.gpus))), program="ip")
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def shape(edges: dict[str, list[float]]) -> None:
    """Set the payload rate in bit/s and the delay in s of the ports towards some GPUs, by rank; others keep theirs."""
    for rank, (rate_bps, delay_s) in edges.items():
        wire_bps = rate_bps * (MTU + 14) / (MTU - 52)
        command = ["tc", "qdisc", "show", "dev", f"p{rank}"]
        before = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        run(
            *([] if "htb" in before else [f"qdisc add dev p{rank} root handle 1: htb default 1"]),
            f"class replace dev p{rank} parent 1: classid 1:1 htb rate {wire_bps:.0f}bit ceil {wire_bps:.0f}bit "
            "burst 64k cburst 64k quantum 60000",
            f"qdisc replace dev p{rank} parent 1:1 handle 2: netem delay {delay_s * 1e6}us limit 10000000",
            program="tc",
        )


def sockets(pids: list[int]) -> list[list[list[str]]]:
    """Return every host's TCP sockets: state, local address and remote address."""
    rows = [[line.split() for line in shown(pid, "ss", "-Htan")] for pid in pids]
    return [sorted([words[0], *words[3:5]] for words in one) for one in rows]


def routes(pids: list[int]) -> list[list[str]]:
    """Return the routes of every host."""
    return [shown(pid, "ip", "route") for pid in pids]


def controls(
    fabric: Fabric, pids: list[int], *, intra: str, wan: str, ring: list[int]
) -> list[tuple[str, str, list[str]]]:
    """Connect a ring with these congestion controls; return both addresses of each end of a connection, and what ss
    tells of it."""
    transport = Transport(congestion_control=CongestionControl(intra=intra, wan=wan))
    with Communicator(fabric, host_pids=pids, workload=allgather(fabric, 1000), transport=transport) as communicator:
        communicator.connect(ring)
        communicator.run()
        lines = [line for pid in pids for line in shown(pid, "ss", "-Htino", "state", "established")]
    found = []
    for ends, told in zip(lines[::2], lines[1::2], strict=True):
        local, remote = (word.rpartition(":")[0] for word in ends.split()[2:4])
        found.append((local, remote, told.split()))
    return found


def allgather(fabric: Fabric, chunk_bytes: int) -> Workload:
    """Return the ring AllGather with chunks of this size."""
    size_bytes = chunk_bytes * len(fabric.gpus)
    return workload("allgather", "ring", sites=fabric.spec.gpus_per_site, size_bytes=size_bytes)


def times(
    fabric: Fabric,
    pids: list[int],
    *,
    edges: list[dict[str, list[float]]],
    ring: list[int],
    chunk_bytes: int,
    count: int,
    transport: dict[str, Any] | None = None,
) -> Any:
    """For each set of edges, shape them, connect the ring, and return the outcomes of `count` collectives on it."""
    found = []
    found_workload, settings = allgather(fabric, chunk_bytes), Transport(**(transport or {}))
    with Communicator(fabric, host_pids=pids, workload=found_workload, transport=settings) as communicator:
        for shaped in edges:
            shape(shaped)
            communicator.connect(ring)
            found.append([asdict(communicator.run()) for _ in range(count)])
    return found


def damage(fabric: Fabric, pids: list[int], *, chunk_bytes: int, ring: list[int], flips: list[list[int]]) -> Any:
    """Run a collective for each [transfer, byte] to damage, undamaged for []; return the faults that were detected."""
    with Communicator(fabric, host_pids=pids, workload=allgather(fabric, chunk_bytes)) as communicator:
        communicator.connect(ring)
        found = []
        for flip in flips:
            flipped = Flip(task=flip[0], byte=flip[1]) if flip else None
            found.append([asdict(fault) for fault in communicator.run(flip=flipped).faults])
        return found


def rings(fabric: Fabric, pids: list[int], *, rings: list[list[int]]) -> Any:
    """Connect rings one after the other; return sockets and routes before, on each of them, and after the end."""
    found = [(sockets(pids), routes(pids))]
    with Communicator(fabric, host_pids=pids, workload=allgather(fabric, 100_000)) as communicator:
        for ring in rings:
            communicator.connect(ring)
            assert communicator.run().faults == ()
            found.append((sockets(pids), routes(pids)))
    return [*found, (sockets(pids), routes(pids))]


def failure(fabric: Fabric, pids: list[int], *, rank: int, signal_number: int, after_s: float) -> Any:
    """Send a signal to one agent during a collective of 0.6 s, or at 0 s before its ring; return the error and what is
    left behind."""
    shape({"1": [1e9, 0.001]})
    communicator = Communicator(fabric, host_pids=pids, workload=allgather(fabric, 10_000_000), deadline_s=5)
    if after_s:
        communicator.connect([gpu.rank for gpu in fabric.gpus])
    killer = os.fork()
    begin_s = time.monotonic()
    if killer == 0:
        time.sleep(after_s)
        os.kill(communicator.agent_pids[rank], signal_number)
        os._exit(0)
    try:
        if not after_s:
            os.waitpid(killer, 0)
            communicator.connect([gpu.rank for gpu in fabric.gpus])
        communicator.run()
        error = ""
    except CollectiveError as raised:
        error = str(raised)
    took_s = time.monotonic() - begin_s
    communicator.close()
    if after_s:
        os.waitpid(killer, 0)
    left = [pid for pid in communicator.agent_pids if Path("/proc", str(pid)).exists()]
    return {"error": error, "took_s": took_s, "left": left, "sockets": sockets(pids)}


def refusals(fabric: Fabric, pids: list[int]) -> Any:
    """Return the errors for a process id that does not exist, a wrong MTU, and an unknown congestion control."""
    wrong = Transport(mtu_bytes=1500), Transport(congestion_control=CongestionControl(intra="pigeon"))
    errors = []
    for transport, host_pids in ((Transport(), [*pids[:-1], 999_999]), (wrong[0], pids), (wrong[1], pids)):
        try:
            Communicator(fabric, host_pids=host_pids, workload=allgather(fabric, 1000), transport=transport).close()
        except CollectiveError as error:
            errors.append(str(error))
    return errors


def main(jobs: dict[str, tuple[str, dict[str, Any]]]) -> None:
    found = {}
    for name, (function, options) in jobs.items():
        fabric = build_fabric(FabricSpec(gpus_per_site=tuple(options.pop("gpus", (4, 4)))))
        with hosts(fabric) as pids:
            found[name] = globals()[function](fabric, pids, **options)
    print(json.dumps(found))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
