"""Trains a small transformer by fake or real tensors: ``fake_training.py alone|ddp|fsdp``; prints the accounts as JSON.

The script is for CUDA and NCCL. It asserts that what has values keeps them: objects, indices, its own data.
"""

import json
import resource
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from longhaul_gpu.activation import ACCOUNTS  # type: ignore[import-not-found]
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

sys.path.insert(0, str(Path(__file__).parent))
from gpu_train import Transformer  # type: ignore[import-not-found]

kind = sys.argv[1]
torch.set_num_threads(1)
torch.manual_seed(0)
if kind != "alone":
    dist.init_process_group("nccl")
model = Transformer(layers=2, width=128, heads=4, words=500, length=64)
trained: nn.Module = model.to("cuda")
if kind == "ddp":
    trained = DistributedDataParallel(model, device_ids=[0])
elif kind == "fsdp":
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mp_policy=policy)
    trained = fully_shard(model, mp_policy=policy)
optimizer = torch.optim.AdamW(trained.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cuda", enabled=kind != "fsdp")
words = torch.arange(12 * 64).remainder(500).view(12, 64)
losses = list[float]()
for (batch,) in DataLoader(TensorDataset(words), batch_size=4, shuffle=True, pin_memory=True):
    given = batch.to("cuda", non_blocking=True)
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=kind != "fsdp"):
        loss = trained(given, given)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(trained.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    shown = loss.detach().clone()
    if kind != "alone":
        dist.all_reduce(shown)
    losses.append(shown.item())

assert words[-1, -1] == (12 * 64 - 1) % 500 and batch.shape == (4, 64)
assert sorted(torch.randperm(100_000).tolist()) == list(range(100_000))
if kind != "alone":
    found: list[object] = [None] * dist.get_world_size()
    dist.all_gather_object(found, {"rank": dist.get_rank(), "text": "x" * 100_000})
    assert [one["rank"] for one in found] == list(range(len(found)))  # type: ignore[index]
    dist.destroy_process_group()
most_bytes = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({**ACCOUNTS.as_json(), "losses": losses, "most_bytes": most_bytes}))
