"""Runs in each rank of a test: ``torch_training.py BACKEND [more]``: trains a small model, and prints its weights.

It does so by DDP and FSDP2. With ``more`` FSDP2 also reduces in bfloat16, accumulates gradients, and does both.
"""

import json
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

STEPS = 5


def model() -> Any:
    """The same model on all ranks."""
    torch.manual_seed(0)
    layers = [nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 24), nn.ReLU(), nn.Linear(24, 10)]
    return nn.Sequential(*layers).double()


def trained(wrapped: Any, data: Any, optimizer: type[Any], parts: int = 1) -> Any:
    """Train for some steps, whose gradients are sums over so many parts of a batch."""
    steps = optimizer(wrapped.parameters(), 0.05, foreach=True)  # as on a GPU, to the last bit
    for batch in data:
        steps.zero_grad()
        for part in batch.chunk(parts):
            wrapped(part).double().square().mean().backward()
        steps.step()
    return wrapped


def main() -> None:
    """Train twice, and print the weights."""
    torch.set_num_threads(1)
    backend = None if sys.argv[1] == "none" else sys.argv[1]
    dist.init_process_group(backend)
    torch.manual_seed(dist.get_rank())
    data = torch.randn(STEPS, 16, 24, dtype=torch.double)
    found: dict[str, Any] = {"backend": dist.get_backend()}
    ddp = trained(DistributedDataParallel(model()), data, torch.optim.SGD)
    found["ddp"] = torch.cat([one.detach().flatten() for one in ddp.parameters()]).tolist()
    size = dist.get_world_size()
    whole = init_device_mesh("cpu", (size,))
    replicas = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("replicate", "shard"))
    exact, half = MixedPrecisionPolicy(), MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    cases = [("fsdp", whole, exact, 1), ("hsdp", replicas, exact, 1)]
    if "more" in sys.argv:
        pair = replicas["shard"]  # sums of two, which are the same in any order
        cases += [("half", pair, half, 1), ("accumulated", replicas, exact, 2), ("both", pair, half, 4)]
    for name, mesh, precision, parts in cases:
        sharded = model()
        for layer in sharded:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh, mp_policy=precision)
        fully_shard(sharded, mesh=mesh, mp_policy=precision)
        trained(sharded, data, torch.optim.AdamW, parts)
        found[name] = torch.cat([one.full_tensor().detach().flatten() for one in sharded.parameters()]).tolist()
    dist.destroy_process_group()
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
