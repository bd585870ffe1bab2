"""Trains a small transformer on two ranks, as scripts for CUDA and NCCL do: ``gpu_train.py cuda|cpu [STEPS]``.

With mixed precision (bfloat16), a gradient scaler and DistributedDataParallel. Rank 0 prints a line of JSON with the
loss of each step, which is the mean over the ranks.
"""

import json
import os
import sys
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Block(nn.Module):
    """Attention and a perceptron, each after a normalisation."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.into, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        """Return activations of the same shape, [batch, length, width]."""
        batch, length, width = given.shape
        parts = self.into(self.norms[0](given)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        seen = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        given = given + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return given + self.down(nn.functional.gelu(self.up(self.norms[1](given))))


class Transformer(nn.Module):
    """A decoder that returns its loss."""

    def __init__(self, *, layers: int, width: int, heads: int, words: int, length: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def embedded(self) -> int:
        """Return the number of parameters in embeddings, which are looked up and not multiplied."""
        return int(self.words.weight.numel() + self.places.weight.numel())

    def forward(self, given: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        """Return the loss for words [batch, length]."""
        hidden = self.words(given) + self.places(torch.arange(given.shape[1], device=given.device))
        return nn.functional.cross_entropy(self.head(self.norm(self.blocks(hidden))).flatten(0, 1), wanted.flatten())


def train(kind: str, steps: int) -> list[float]:
    """Return the loss of each step."""
    device = f"cuda:{os.environ['LOCAL_RANK']}" if kind == "cuda" else "cpu"
    if kind == "cuda":
        assert torch.cuda.is_available()
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if kind == "cuda" else "gloo")
    torch.manual_seed(dist.get_rank())
    model = Transformer(layers=2, width=128, heads=4, words=500, length=64).to(device)
    trained = DistributedDataParallel(model, device_ids=[0] if kind == "cuda" else None)
    optimizer = torch.optim.AdamW(trained.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(kind)
    words = torch.randint(0, 500, (4, 64)).pin_memory() if kind == "cuda" else torch.randint(0, 500, (4, 64))
    words = words.to(device, non_blocking=True)
    losses = []
    side = torch.cuda.stream(torch.cuda.Stream()) if kind == "cuda" else nullcontext()
    for _ in range(steps):
        with torch.autocast(kind, dtype=torch.bfloat16):
            loss = trained(words, words)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(trained.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        with side:
            shown = loss.detach().clone()
        dist.all_reduce(shown)
        losses.append(shown.item() / dist.get_world_size())
    dist.barrier()
    return losses


if __name__ == "__main__":
    torch.set_num_threads(1)
    found = train(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 4)
    if dist.get_rank() == 0:
        print(json.dumps(found))
    dist.destroy_process_group()
