"""A GPT in a pipeline of all GPUs, for CUDA and NCCL, by torch.distributed.pipelining: nothing in it knows of Longhaul.

    .venv/bin/python scenarios/run.py --modes base --set program.gpu=h100 --set program.tensors=fake \
        --set program.backend=longhaul --set 'program.preload=["torch"]' --set 'program.memory="6 GB"' \
        --exec ".venv/bin/python docs/examples/pipeline.py 1f1b"

`pipeline.py gpipe` has another schedule. Each GPU has two layers; the first one also has the embedding, and the last
one the head.
"""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

VOCABULARY, WIDTH, HEADS, TOKENS, LAYERS = 512, 1024, 16, 256, 2
MICROBATCHES, SEQUENCES, STEPS = 8, 1, 3  # sequences of a microbatch
SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


class Block(nn.Module):
    """A layer of a transformer."""

    def __init__(self):
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        shape = (*x.shape[:2], HEADS, WIDTH // HEADS)
        query, key, value = (part.view(shape).transpose(1, 2) for part in self.qkv(self.before(x)).chunk(3, -1))
        seen = scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(x.shape))
        return x + self.mlp(self.between(x))


def stage_of(rank, ranks):
    """Return the layers of a GPU."""
    layers = [Block() for _ in range(LAYERS)]
    if rank == 0:
        layers.insert(0, nn.Embedding(VOCABULARY, WIDTH))
    if rank == ranks - 1:
        layers += [nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)]
    return nn.Sequential(*layers)


def loss_of(scores, wanted):
    """Return the mean loss of a microbatch."""
    return cross_entropy(scores.flatten(0, 1), wanted.flatten())


def main():
    """Train the model for some steps."""
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    torch.manual_seed(dist.get_rank())
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = stage_of(rank, ranks).to(device)
    schedule = SCHEDULES[sys.argv[1]](PipelineStage(model, rank, ranks, device), MICROBATCHES, loss_fn=loss_of)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for step in range(STEPS):
        began = time.perf_counter()
        tokens = torch.randint(VOCABULARY, (MICROBATCHES * SEQUENCES, TOKENS + 1), device=device)
        given = [tokens[:, :-1]] if rank == 0 else []
        losses = []
        schedule.step(*given, target=tokens[:, 1:] if rank == ranks - 1 else None, losses=losses)
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        if rank == ranks - 1:
            loss = torch.stack(losses).mean().item()
            print(f"step {step}: loss {loss:.4f}, {1e3 * (time.perf_counter() - began):.3f} ms", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
