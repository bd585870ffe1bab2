"""GPT-2 with 124 million parameters under DistributedDataParallel, for CUDA and NCCL: nothing in it knows of Longhaul.

    .venv/bin/python scenarios/run.py --modes base --wan-delay "10 ms" --set program.gpu=h100 \
        --set program.tensors=fake --set program.backend=longhaul --set 'program.preload=["torch"]' \
        --exec ".venv/bin/python docs/examples/gpt2.py"
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel

VOCABULARY, WIDTH, LAYERS, HEADS, TOKENS, SEQUENCES, STEPS = 50304, 768, 12, 12, 1024, 8, 3


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


class Gpt2(nn.Module):
    """A transformer that predicts the next token; it returns the loss. The head has the weights of the embedding."""

    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.layers = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens, wanted):
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        return cross_entropy(self.head(self.norm(self.layers(x))).flatten(0, 1), wanted.flatten())


def main():
    """Train the model for some steps."""
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    model = DistributedDataParallel(Gpt2().to(device), device_ids=[device.index])
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4)
    for step in range(STEPS):
        words = torch.randint(VOCABULARY, (SEQUENCES, TOKENS + 1), device=device)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(words[:, :-1], words[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
