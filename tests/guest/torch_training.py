"""Runs in each rank of a test: ``torch_training.py BACKEND``: DDP and FSDP2 of a small model; prints its weights."""

import json
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

STEPS = 5


def model() -> Any:
    """The same model on all ranks."""
    torch.manual_seed(0)
    layers = [nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 24), nn.ReLU(), nn.Linear(24, 10)]
    return nn.Sequential(*layers).double()


def trained(wrapped: Any, data: Any, optimizer: type[Any]) -> Any:
    """Train for some steps."""
    steps = optimizer(wrapped.parameters(), 0.05)
    for batch in data:
        steps.zero_grad()
        wrapped(batch).square().mean().backward()
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
    for name, mesh in [
        ("fsdp", init_device_mesh("cpu", (size,))),
        ("hsdp", init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("replicate", "shard"))),
    ]:
        sharded = model()
        for layer in sharded:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh)
        fully_shard(sharded, mesh=mesh)
        trained(sharded, data, torch.optim.AdamW)
        found[name] = torch.cat([one.full_tensor().detach().flatten() for one in sharded.parameters()]).tolist()
    dist.destroy_process_group()
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
