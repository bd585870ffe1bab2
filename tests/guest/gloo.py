"""Runs inside the VM: PyTorch's all_gather over Gloo on a testbed's hosts, beside an AllGather of the project's own.

``gloo.py SCENARIO TORCH_PYTHON`` prints one JSON object: the time of the project's first collective in mode base, the
model's for it, and the times of PyTorch's, one after the other, under the same conditions. ``gloo.py ranks`` is what
TORCH_PYTHON runs: it forks a process for every rank, of what stands on stdin, each in its host's network namespace.
"""

import ctypes
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROUNDS = 3
PORT = 29500
CLONE_NEWNET = 0x40000000


def now_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def ours(scenario: str, python: str) -> None:
    from scenarios.policies.decide import MODES
    from scenarios.spec.load import load_scenario
    from scenarios.testbed.testbed import Testbed

    with Testbed(load_scenario(scenario)) as testbed:
        (row,) = testbed.run(MODES["base"], count=1)
        hosts = [
            {"pid": pid, "address": gpu.ip, "interface": gpu.interface}
            for gpu, pid in zip(testbed.fabric.gpus, testbed.network.host_pids, strict=True)
        ]
        spec = {"hosts": hosts, "bytes": testbed.setting.collective.chunk_bytes}
        said = subprocess.run(
            [python, __file__, "ranks"], input=json.dumps(spec), stdout=subprocess.PIPE, text=True, check=True
        ).stdout
    reports = [json.loads(line) for line in said.splitlines()]
    assert sorted(report["rank"] for report in reports) == list(range(len(hosts)))
    rounds = zip(*(report["rounds"] for report in reports), strict=True)
    times_s = [(max(end for _, end in times) - min(start for start, _ in times)) / 1e9 for times in rounds]
    print(json.dumps({"ours_s": row.completion_s, "gloo_s": times_s, "right": all(r["right"] for r in reports)}))


def ranks(spec: dict[str, Any]) -> None:
    os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"  # IPv6 is tried, which the VM does not have
    import torch.distributed  # once, and not in every rank: it takes long in the VM

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
    """What a user's program does: join the group, and gather a tensor of every rank's."""
    distributed, n = torch.distributed, len(spec["hosts"])
    os.environ["GLOO_SOCKET_IFNAME"] = spec["hosts"][rank]["interface"]
    master = f"tcp://{spec['hosts'][0]['address']}:{PORT}"
    distributed.init_process_group("gloo", init_method=master, rank=rank, world_size=n)
    own = torch.full((spec["bytes"],), rank, dtype=torch.uint8)
    gathered = [torch.zeros(spec["bytes"], dtype=torch.uint8) for _ in range(n)]
    rounds = []
    for _ in range(ROUNDS):
        distributed.barrier()
        start_ns = now_ns()
        distributed.all_gather(gathered, own)
        rounds.append((start_ns, now_ns()))
    right = all(bool((tensor == sender).all()) for sender, tensor in enumerate(gathered))
    distributed.barrier()
    distributed.destroy_process_group()
    return {"rank": rank, "rounds": rounds, "right": right}


if __name__ == "__main__":
    if sys.argv[1:] == ["ranks"]:
        ranks(json.loads(sys.stdin.read()))
    else:
        sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
        ours(*sys.argv[1:])
