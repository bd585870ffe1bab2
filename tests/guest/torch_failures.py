"""Runs in each of three ranks of a test: work that fails, each time in a group of its own; prints the errors."""

import os
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode


def tell(name: str, call: Callable[[], object]) -> None:
    """Print the error of a call."""
    begun = time.monotonic()
    try:
        call()
    except Exception as error:
        print(f"{name}: {error} ({type(error).__name__}, {time.monotonic() - begun:.0f} s)", flush=True)
    else:
        print(f"{name}: nothing", flush=True)


class Counting(TorchDispatchMode):  # type: ignore[misc]
    """Counts the operations of a thread."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note an operation, and do it."""
        self.seen.append(str(func))
        return func(*args, **kwargs or {})


def main() -> None:
    """Fail in all ways; before that, count what a collective does in the script's own thread."""
    dist.init_process_group("longhaul", timeout=timedelta(seconds=30))
    rank = dist.get_rank()
    strided = torch.zeros(4, 4).t()
    with Counting() as counting:
        dist.all_reduce(strided, op=dist.ReduceOp.AVG)
        dist.barrier()
    print(f"seen: {counting.seen}", flush=True)
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
    with FakeTensorMode():
        fake = torch.zeros(3)
    tell("fake", lambda: dist.all_reduce(fake))
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
