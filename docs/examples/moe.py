"""A layer of experts on all GPUs of both sites (MoE), for CUDA and NCCL: nothing in it knows of Longhaul.

    .venv/bin/python scenarios/run.py --modes base,wan --set program.gpu=h100 --set program.backend=longhaul \
        --set 'program.preload=["torch"]' --set 'program.memory="6 GB"' --exec ".venv/bin/python docs/examples/moe.py"

A router sends each token to one of 16 experts, of which each of 8 GPUs has two. Tokens go to their experts and back by
all_to_all_single with unequal splits, and so do gradients: four times in a step. Each GPU prints how many of its tokens
it sends to each GPU.
"""

import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import gelu, mse_loss

WIDTH, HIDDEN, TOKENS, EXPERTS, STEPS = 512, 512, 1024, 2, 3  # tokens and experts of a GPU


class Exchange(torch.autograd.Function):
    """Rows to other GPUs and from them; gradients take the way back."""

    @staticmethod
    def forward(ctx, rows, sent, received):
        ctx.sent, ctx.received = sent, received
        out = rows.new_empty(sum(received), rows.shape[1])
        dist.all_to_all_single(out, rows.contiguous(), received, sent)
        return out

    @staticmethod
    def backward(ctx, grad):
        out = grad.new_empty(sum(ctx.sent), grad.shape[1])
        dist.all_to_all_single(out, grad.contiguous(), ctx.sent, ctx.received)
        return out, None, None


class Experts(nn.Module):
    """A norm and a router, which are the same on all GPUs, and this GPU's experts."""

    def __init__(self, ranks):
        super().__init__()
        torch.manual_seed(0)
        self.norm = nn.LayerNorm(WIDTH)
        self.router = nn.Linear(WIDTH, EXPERTS * ranks, bias=False)
        torch.manual_seed(1 + dist.get_rank())
        self.first = nn.Parameter(torch.randn(EXPERTS, WIDTH, HIDDEN) / WIDTH**0.5)
        self.second = nn.Parameter(torch.randn(EXPERTS, HIDDEN, WIDTH) / HIDDEN**0.5)
        self.sent = []

    def forward(self, x):
        ranks, x = dist.get_world_size(), self.norm(x)
        weights, chosen = self.router(x).softmax(-1).max(-1)
        order = chosen.argsort(stable=True)
        counts = chosen.bincount(minlength=EXPERTS * ranks)
        given = torch.empty_like(counts)
        dist.all_to_all_single(given, counts)  # how many tokens each GPU has for each of this GPU's experts
        self.sent, received = counts.view(ranks, -1).sum(1).tolist(), given.view(ranks, -1).sum(1).tolist()
        rows = Exchange.apply(x[order], self.sent, received)
        of_expert = torch.arange(EXPERTS, device=x.device).repeat(ranks).repeat_interleave(given)
        out = torch.empty_like(rows)
        for expert in range(EXPERTS):
            own = (of_expert == expert).nonzero().flatten()
            hidden = gelu(rows.index_select(0, own) @ self.first[expert])
            out = out.index_copy(0, own, hidden @ self.second[expert])
        back = Exchange.apply(out, received, self.sent)
        return x + weights[:, None] * torch.empty_like(x).index_copy(0, order, back)


def main():
    """Train the layer for some steps."""
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    model = Experts(dist.get_world_size()).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x = torch.randn(TOKENS, WIDTH, device=device)
    for step in range(STEPS):
        began = time.perf_counter()
        loss = mse_loss(model(x), x.roll(1, dims=1))
        optimizer.zero_grad()
        loss.backward()
        for shared in (*model.norm.parameters(), *model.router.parameters()):
            dist.all_reduce(shared.grad, op=dist.ReduceOp.AVG)
        optimizer.step()
        torch.cuda.synchronize()
        took_ms = 1e3 * (time.perf_counter() - began)
        print(f"step {step}: loss {loss.item():.4f}, {took_ms:.3f} ms, tokens to GPUs {model.sent}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
