"""Trains equal layers under FSDP2, for CUDA and NCCL.

``fsdp_steps.py WIDTH ROWS LAYERS STEPS [resharded] [half] [replicated]``; with replicas, there are two of them.
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

WIDTH, ROWS, LAYERS, STEPS = map(int, sys.argv[1:5])


def main() -> None:
    """Train for some steps."""
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS))).to("cuda")
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16) if "half" in sys.argv else MixedPrecisionPolicy()
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    if "replicated" in sys.argv:
        mesh = init_device_mesh("cuda", (2, dist.get_world_size() // 2), mesh_dim_names=("replicate", "shard"))
    for layer in model:
        fully_shard(layer, mesh=mesh, reshard_after_forward="resharded" in sys.argv, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    given = torch.randn(ROWS, WIDTH, device="cuda", dtype=policy.param_dtype or torch.float32)
    for _ in range(STEPS):
        model(given).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
