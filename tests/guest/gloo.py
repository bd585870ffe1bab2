"""Runs inside the VM: PyTorch's collectives over Gloo on a testbed's hosts, and the project's own of the same kind.

``gloo.py SCENARIO TORCH_PYTHON`` prints a JSON object for each kind: the time of the project's own collective in mode
base and the times of PyTorch's, one after the other, under the same conditions. TORCH_PYTHON runs ``gloo.py ranks``,
which reads the hosts from stdin, and forks a process for every rank, in its host's network namespace.
"""

import ctypes
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROUNDS = 3
KINDS = ("allgather", "allreduce", "broadcast", "alltoall")
PORT = 29500
CLONE_NEWNET = 0x40000000


def now_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def ours(scenario: str, python: str) -> None:
    from scenarios.policies.policy import MODES
    from scenarios.spec.collective import CollectiveSpec
    from scenarios.spec.load import load_scenario
    from scenarios.testbed.point_run import PointRun
    from scenarios.testbed.testbed import Testbed

    found = {}
    with Testbed(load_scenario(scenario)) as testbed:
        chunk_bytes = testbed.config.collective.chunk_bytes
        for kind in KINDS:
            testbed.renew(CollectiveSpec(kind=kind, chunk_bytes=chunk_bytes))
            (record,) = PointRun(testbed, MODES["base"]).records(range(1))
            found[kind] = record.completion_s
        hosts = [
            {"pid": pid, "address": gpu.ip, "interface": gpu.interface}
            for gpu, pid in zip(testbed.fabric.gpus, testbed.network.host_pids, strict=True)
        ]
        spec = {"hosts": hosts, "bytes": chunk_bytes}
        said = subprocess.run(
            [python, __file__, "ranks"], input=json.dumps(spec), stdout=subprocess.PIPE, text=True, check=True
        ).stdout
    reports = [json.loads(line) for line in said.splitlines()]
    assert sorted(report["rank"] for report in reports) == list(range(len(hosts)))
    for kind in KINDS:
        rounds = zip(*(report[kind] for report in reports), strict=True)
        times_s = [(max(end for _, end in times) - min(start for start, _ in times)) / 1e9 for times in rounds]
        right = all(report["right"][kind] for report in reports)
        print(json.dumps({"kind": kind, "ours_s": found[kind], "gloo_s": times_s, "right": right}))


def ranks(spec: dict[str, Any]) -> None:
    os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"  # or it warns that the VM has no IPv6
    import torch.distributed  # once, before the forks: the import is slow in the VM

    children = []
    for rank, host in enumerate(spec["hosts"]):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                namespace = os.open(f"/proc/{host['pid']}/ns/net", os.O_RDONLY)
                assert ctypes.CDLL(None).setns(namespace, CLONE_NEWNET) == 0
                sys.stdout.write(json.dumps(one_rank(torch, rank, spec)) + "\n")
                sys.stdout.flush()
                status = 0
            finally:
                os._exit(status)
        children.append(child)
    assert all(os.waitpid(child, 0)[1] == 0 for child in children)


def one_rank(torch: Any, rank: int, spec: dict[str, Any]) -> dict[str, Any]:
    """Do what a user's program does: join the group, and run each kind of collective a few times."""
    distributed, n, size = torch.distributed, len(spec["hosts"]), spec["bytes"]
    os.environ["GLOO_SOCKET_IFNAME"] = spec["hosts"][rank]["interface"]
    master = f"tcp://{spec['hosts'][0]['address']}:{PORT}"
    distributed.init_process_group("gloo", init_method=master, rank=rank, world_size=n)
    own = torch.full((size,), rank, dtype=torch.uint8)
    gathered = [torch.zeros(size, dtype=torch.uint8) for _ in range(n)]
    summed = torch.zeros(n * size // 4, dtype=torch.int32)
    spread = torch.zeros(size, dtype=torch.uint8)
    sent = torch.full((n * size,), rank, dtype=torch.uint8)
    exchanged = torch.zeros(n * size, dtype=torch.uint8)
    calls: dict[str, Callable[[], object]] = {
        "allgather": lambda: distributed.all_gather(gathered, own),
        "allreduce": lambda: distributed.all_reduce(summed),
        "broadcast": lambda: distributed.broadcast(spread, 0),
        "alltoall": lambda: distributed.all_to_all_single(exchanged, sent),
    }
    found: dict[str, Any] = {kind: [] for kind in calls}
    for kind, call in calls.items():
        for _ in range(ROUNDS):
            summed.fill_(rank + 1)
            spread.fill_(0 if rank else 7)
            distributed.barrier()
            start_ns = now_ns()
            call()
            found[kind].append((start_ns, now_ns()))
            if kind == "allreduce":
                reduced = bool((summed == n * (n + 1) // 2).all())
            if kind == "broadcast":
                received = bool((spread == 7).all())
    found["right"] = {
        "allgather": all(bool((tensor == sender).all()) for sender, tensor in enumerate(gathered)),
        "allreduce": reduced,
        "broadcast": received,
        "alltoall": all(bool((exchanged[k * size : (k + 1) * size] == k).all()) for k in range(n)),
    }
    distributed.barrier()
    distributed.destroy_process_group()
    return {"rank": rank, **found}


if __name__ == "__main__":
    if sys.argv[1:] == ["ranks"]:
        ranks(json.loads(sys.stdin.read()))
    else:
        sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
        ours(*sys.argv[1:])
