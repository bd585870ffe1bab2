"""A GPT that DistributedDataParallel trains, for CUDA and NCCL: nothing in it knows of Longhaul.

    .venv/bin/python scenarios/run.py --modes base,wan,ccl,joint --set program.gpu=h100 --set program.backend=longhaul \
        --set 'program.preload=["torch"]' --set 'program.memory="8 GB"' --exec ".venv/bin/python docs/examples/train.py"

`train.py gpt2` trains GPT-2 with 124 million parameters, whose head has the weights of the embedding.
"""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel

IS_GPT2 = sys.argv[1:] == ["gpt2"]
SIZES = (50304, 768, 12, 12, 1024, 8, 3) if IS_GPT2 else (512, 256, 4, 4, 64, 2, 4)
VOCABULARY, WIDTH, LAYERS, HEADS, TOKENS, SEQUENCES, STEPS = SIZES


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


class Gpt(nn.Module):
    """A transformer that predicts the next token; it returns the loss."""

    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.layers = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        if IS_GPT2:
            self.head.weight = self.tokens.weight

    def forward(self, tokens, wanted):
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        return cross_entropy(self.head(self.norm(self.layers(x))).flatten(0, 1).float(), wanted.flatten())


def main():
    """Train the model for some steps."""
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    torch.manual_seed(1)
    model = DistributedDataParallel(Gpt().to(device), device_ids=[device.index])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(dist.get_rank())
    for step in range(STEPS):
        began = time.perf_counter()
        tokens = torch.randint(VOCABULARY, (SEQUENCES, TOKENS + 1), device=device)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(tokens[:, :-1], tokens[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        torch.cuda.synchronize()
        if dist.get_rank() == 0:
            print(f"step {step}: loss {loss.item():.4f}, {1e3 * (time.perf_counter() - began):.3f} ms", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
