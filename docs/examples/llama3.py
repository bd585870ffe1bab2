"""Llama 3 with 8 billion parameters under FSDP2, for CUDA and NCCL: nothing in it knows of Longhaul.

Sizes, precision, activation checkpointing and batch are those of TorchTitan's table for 8 GPUs (docs/gpus.md). With
`LAYERS` fewer of the 32 layers are made.
"""

import os
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.functional import cross_entropy, scaled_dot_product_attention, silu
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

VOCABULARY, WIDTH, HEADS, KEYS, HIDDEN, TOKENS, SEQUENCES = 128256, 4096, 32, 8, 14336, 8192, 2
LAYERS, STEPS = int(os.environ.get("LAYERS", "32")), 3
aten = torch.ops.aten
SAVED = (aten._scaled_dot_product_flash_attention_for_cpu.default, aten._scaled_dot_product_flash_attention.default)


def kept_every_other():
    """Return contexts that keep attention's results and those of every second product, as TorchTitan's "op" does."""
    counts = {True: 0, False: 0}

    def policy(context, operation, *_, **__):
        if operation == aten.mm.default:
            counts[context.is_recompute] += 1
            return CheckpointPolicy.MUST_SAVE if counts[context.is_recompute] % 2 else CheckpointPolicy.PREFER_RECOMPUTE
        return CheckpointPolicy.MUST_SAVE if operation in SAVED else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def rotated(x, angles):
    """Return queries or keys, [batch, length, heads, width], rotated by their places."""
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * angles[None, :, None]).flatten(3).type_as(x)


class Block(nn.Module):
    """A layer: attention with fewer keys than queries, and a gated perceptron."""

    def __init__(self):
        super().__init__()
        each = WIDTH // HEADS
        linear = partial(nn.Linear, bias=False)
        self.norms = nn.ModuleList(nn.RMSNorm(WIDTH) for _ in range(2))
        self.query, self.out = linear(WIDTH, WIDTH), linear(WIDTH, WIDTH)
        self.key, self.value = linear(WIDTH, KEYS * each), linear(WIDTH, KEYS * each)
        self.gate, self.up, self.down = linear(WIDTH, HIDDEN), linear(WIDTH, HIDDEN), linear(HIDDEN, WIDTH)

    def forward(self, x, angles):
        batch, length, _ = x.shape
        given = self.norms[0](x)
        query, key, value = (
            part(given).view(batch, length, -1, WIDTH // HEADS) for part in (self.query, self.key, self.value)
        )
        key, value = (one.repeat_interleave(HEADS // KEYS, dim=2) for one in (rotated(key, angles), value))
        seen = scaled_dot_product_attention(
            *(one.transpose(1, 2) for one in (rotated(query, angles), key, value)), is_causal=True
        )
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, WIDTH))
        given = self.norms[1](x)
        return x + self.down(silu(self.gate(given)) * self.up(given))


class Llama(nn.Module):
    """A transformer that predicts the next token; it returns scores."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        turns = 500000.0 ** -torch.arange(0, 1, 2 * HEADS / WIDTH)
        places = torch.outer(torch.arange(TOKENS), turns)
        self.register_buffer("angles", torch.polar(torch.ones_like(places), places), persistent=False)

    def forward(self, words):
        x = self.words(words)
        for layer in self.layers:
            x = checkpoint(layer, x, self.angles, use_reentrant=False, context_fn=kept_every_other)
        return self.head(self.norm(x))


def main():
    """Train the model for some steps."""
    dist.init_process_group("nccl")
    torch.set_float32_matmul_precision("high")
    model = Llama().to("cuda")
    precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.layers:
        fully_shard(layer, mp_policy=precision)
    fully_shard(model, mp_policy=precision)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    for step in range(STEPS):
        words = torch.randint(VOCABULARY, (SEQUENCES, TOKENS + 1), device="cuda")
        scores = model(words[:, :-1])
        loss = cross_entropy(scores.flatten(0, 1).float(), words[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
