"""Runs as a rank of a program: ``ddp.py EVERY STEPS`` trains a model of two layers over Gloo.

With EVERY 1, DistributedDataParallel averages the gradients in every step; otherwise the ranks train independently and
average their parameters every EVERY steps (local SGD). A sleep of 20 ms stands for the computing of a step. Prints one
line of JSON.
"""

import json
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

COMPUTING_S = 0.02

every, steps = int(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 1024))
trained = DistributedDataParallel(model) if every == 1 else model
inputs, wanted = torch.randn(8, 1024), torch.randn(8, 1024)
dist.barrier()
start_s = time.monotonic()
for step in range(1, steps + 1):
    nn.functional.mse_loss(trained(inputs), wanted).backward()
    time.sleep(COMPUTING_S)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.01 * parameter.grad
            parameter.grad = None
        if every > 1 and step % every == 0:
            flat = nn.utils.parameters_to_vector(model.parameters())
            dist.all_reduce(flat)
            nn.utils.vector_to_parameters(flat / dist.get_world_size(), model.parameters())
took_s = time.monotonic() - start_s
size = sum(parameter.numel() * 4 for parameter in model.parameters())
print(json.dumps({"bytes": size, "step_s": took_s / steps}))
dist.destroy_process_group()
