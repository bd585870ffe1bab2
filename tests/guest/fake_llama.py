"""Runs docs/examples/llama3.py as rank 0 of 8 without a network (torch's backend "fake"), with a clock of its own.

Prints a line of JSON: what a step is charged, in all and by operation. A collective takes no time here.
"""

import json
import runpy
from pathlib import Path

import torch
import torch.distributed as dist
from longhaul_gpu.activation import ACCOUNTS  # type: ignore[import-not-found]
from longhaul_gpu.streams import DEVICE  # type: ignore[import-not-found]
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.testing._internal.distributed.fake_pg import FakeStore

now_ns = 10**9


def sleep(seconds: float) -> None:
    """Let the clock go on."""
    global now_ns
    now_ns += round(seconds * 1e9)


DEVICE.now_ns, DEVICE.sleep = lambda: now_ns, sleep
torch.set_num_threads(1)
init = dist.init_process_group
dist.init_process_group = lambda *_, **__: init("fake", store=FakeStore(), rank=0, world_size=8)
ends = list[tuple[int, dict[str, float]]]()


def stepped(*_: object) -> None:
    charged = {name: one.took_ns / 1e9 for name, one in ACCOUNTS.by_operation.items()}
    flops = sum(one.flops for one in ACCOUNTS.by_operation.values())
    ends.append((DEVICE.end_ns, {**charged, "flops": flops}))


register_optimizer_step_post_hook(stepped)
runpy.run_path(str(Path(__file__).parents[2] / "docs/examples/llama3.py"), run_name="__main__")
(before_ns, before), (end_ns, after) = ends[-2:]
took = {name: after[name] - before.get(name, 0.0) for name in after}
found = {
    "step_s": (end_ns - before_ns) / 1e9,
    "flops": took.pop("flops"),
    "operations": dict(sorted(took.items(), key=lambda item: -item[1])),
    "unknown": sorted(ACCOUNTS.unknown),
}
print(json.dumps(found))
