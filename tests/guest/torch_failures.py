"""Runs in each of three ranks of a test: work that fails, each time in a group of its own; prints the errors."""

import os
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist


def tell(name: str, call: Callable[[], object]) -> None:
    """Print the error of a call."""
    begun = time.monotonic()
    try:
        call()
    except Exception as error:
        print(f"{name}: {error} ({type(error).__name__}, {time.monotonic() - begun:.0f} s)", flush=True)
    else:
        print(f"{name}: nothing", flush=True)


def main() -> None:
    """Fail in all ways."""
    dist.init_process_group("longhaul", timeout=timedelta(seconds=30))
    rank = dist.get_rank()
    pair = dist.new_group([0, 2], timeout=timedelta(seconds=1))
    if rank == 0:
        tell("late", lambda: dist.all_reduce(torch.zeros(10), group=pair))
        tell("after", lambda: dist.all_reduce(torch.zeros(10), group=pair))
        tell("message", lambda: dist.send(torch.zeros(10), 2, group=pair))
    dist.barrier()
    slow = dist.new_group([0, 1])
    if rank == 0:
        work = dist.all_reduce(torch.ones(10), group=slow, async_op=True)
        tell("wait", lambda: work.wait(timedelta(seconds=0.5)))
        tell("no end", work.wait)
        print(f"future: {work.get_future().value()[0][0].item():g}", flush=True)
    if rank == 1:
        time.sleep(1.5)
        dist.all_reduce(torch.ones(10), group=slow)
    dist.barrier()
    other = dist.new_group([0, 1], timeout=timedelta(seconds=5))
    if rank < 2:
        tell("sizes", lambda: dist.all_reduce(torch.zeros(10 if rank else 1000), group=other))
    third = dist.new_group([0, 1], timeout=timedelta(seconds=5))
    if rank < 2:
        one, two = torch.zeros(8), torch.zeros(4)
        calls: list[Callable[[], Any]] = [
            lambda: dist.all_gather_into_tensor(one, two, group=third),
            lambda: dist.reduce_scatter_tensor(two, one, group=third),
        ]
        tell("kinds", calls[rank])
    fourth = dist.new_group([0, 1], timeout=timedelta(seconds=5))
    if rank == 0:
        tell("unequal", lambda: dist.send(torch.zeros(2), 1, group=fourth))
    if rank == 1:
        tell("unequal", lambda: dist.recv(torch.zeros(3), 0, group=fourth))
    tell("no such", lambda: dist.all_reduce(torch.zeros(3), op=dist.ReduceOp.BAND))
    tell("sparse", lambda: dist.all_reduce(torch.zeros(3, 3).to_sparse()))
    tell("self", lambda: dist.group.WORLD.send([torch.zeros(1)], rank, 0))
    tell("split", lambda: dist.all_to_all_single(torch.zeros(4), torch.zeros(4)))
    fifth = dist.new_group(timeout=timedelta(seconds=5))
    if rank == 2:
        fifth.abort()
    else:
        tell("abort", lambda: dist.all_reduce(torch.zeros(3), group=fifth))
    dist.barrier()
    if rank == 1:
        os._exit(7)
    tell("dies", lambda: [dist.all_reduce(torch.zeros(100_000)) for _ in range(3)])
    tell("awaited", lambda: dist.recv(torch.zeros(1), 1))


if __name__ == "__main__":
    main()
