"""Runs natively under `longhaul_gpu` with a clock of its own: what operations, streams and reads of values take.

Prints one line of JSON, times in ns. Computing takes no time by that clock, as in virtual time.
"""

import contextlib
import io
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from longhaul_gpu.activation import ACCOUNTS  # type: ignore[import-not-found]
from longhaul_gpu.streams import DEVICE  # type: ignore[import-not-found]
from torch import nn

sys.path.insert(0, str(Path(__file__).parent))
from gpu_train import Transformer  # type: ignore[import-not-found]


class Clock:
    """A clock that only sleeps move."""

    def __init__(self) -> None:
        self.ns = 1_000_000_000
        self.slept_ns = list[int]()

    def sleep(self, seconds: float) -> None:
        self.ns += round(seconds * 1e9)
        self.slept_ns.append(round(seconds * 1e9))


clock = Clock()
DEVICE.now_ns, DEVICE.sleep = lambda: clock.ns, clock.sleep
torch.set_num_threads(1)
torch.manual_seed(0)
found: dict[str, Any] = {}


def charged_ns(work: Callable[[], object]) -> int:
    """Return the time that work takes on the current stream, which is idle before."""
    torch.cuda.synchronize()
    work()
    return int(DEVICE.current.end_ns - clock.ns)


@contextlib.contextmanager
def sleeping(name: str) -> Iterator[None]:
    """Note how long the host sleeps after 1 ms of work has been put on the stream."""
    torch.cuda.synchronize()
    DEVICE.busy(1e-3)
    clock.slept_ns.clear()
    with contextlib.redirect_stdout(io.StringIO()):
        yield
    found["slept"][name] = sum(clock.slept_ns)


left, right = torch.ones(64, 128, device="cuda"), torch.ones(128, 32, device="cuda")
halves = left.bfloat16(), right.bfloat16()
found["times"] = {
    "mm": charged_ns(lambda: left @ right),
    "mm bfloat16": charged_ns(lambda: halves[0] @ halves[1]),
    "relu": charged_ns(lambda: left.relu()),
    "add in place": charged_ns(lambda: left.add_(1.0)),
    "fill": charged_ns(lambda: left.fill_(1.0)),
    "sum": charged_ns(lambda: left.sum()),
    "broadcast": charged_ns(lambda: left + right[:, 0]),
    "embedding": charged_ns(lambda: nn.functional.embedding(torch.arange(2), right)),
    "views": charged_ns(lambda: left.view(-1).chunk(4)[1].unsqueeze(0).expand(5, -1).t()),
    "chain": charged_ns(lambda: (left @ right).relu().sum()),
    "measured": charged_ns(lambda: torch.bmm(torch.empty(2, 3, 4), torch.empty(2, 4, 5))),
    "measured, other shapes": charged_ns(lambda: torch.bmm(torch.empty(1, 3, 4), torch.empty(1, 4, 5))),
}

torch.cuda.synchronize()
side, start, end = torch.cuda.Stream(), torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
began_ns = clock.ns
start.record()
left @ right
with torch.cuda.stream(side):
    for _ in range(2):
        left @ right
overlapped_ns = DEVICE.end_ns - began_ns
torch.cuda.current_stream().wait_stream(side)
left.relu()
end.record()
found["streams"] = {
    "overlapped": overlapped_ns,
    "joined": DEVICE.current.end_ns - began_ns,
    "event": round(start.elapsed_time(end) * 1e6),
    "host": clock.ns - began_ns,
    "happened": end.query(),
}
end.synchronize()
found["streams"] |= {"host, synchronised": clock.ns - began_ns, "happened, synchronised": end.query()}

found["slept"] = {}
mask, one = left > 0, left.sum()
for name, read in {
    "launch": lambda: left @ right,
    "shape": lambda: left.shape,
    "item": one.item,
    "float": lambda: float(one),
    "bool": lambda: bool(one > 0),
    "tolist": lambda: right[0].tolist(),
    "cpu": left.cpu,
    "to": lambda: left.to("cpu"),
    "to, later": lambda: left.to("cpu", non_blocking=True),
    "print": lambda: print(one),
    "nonzero": left.nonzero,
    "masked": lambda: left[mask],
    "indexed": lambda: left[torch.zeros(1, dtype=torch.long)],
    "synchronize": torch.cuda.synchronize,
    "stream": lambda: torch.cuda.current_stream().synchronize(),
    "other stream": side.synchronize,
}.items():
    with sleeping(name):
        read()

size = {"layers": 2, "width": 128, "heads": 4, "words": 512, "length": 64}
model, words = Transformer(**size).to("cuda"), torch.randint(0, size["words"], (2, size["length"]), device="cuda")
optimizer = torch.optim.AdamW(model.parameters())
ACCOUNTS.by_operation.clear()
model(words, words).backward()
parameters = sum(each.numel() for each in model.parameters())
found["model"] = {
    **size,
    "batch": 2,
    "parameters": parameters - model.embedded(),
    "flops": sum(account.flops for account in ACCOUNTS.by_operation.values()),
    "unknown": sorted(ACCOUNTS.unknown),
}
for _ in range(2):
    ACCOUNTS.by_operation.clear()
    optimizer.step()
found["optimizer"] = {
    "tensors": len(list(model.parameters())),
    "kernels": sum(account.count for account in ACCOUNTS.by_operation.values()),
    "bytes": sum(account.moved_bytes for account in ACCOUNTS.by_operation.values()),
    "parameters": parameters,
}

kept, before = left.cpu(), left.to("cuda")
left.add_(1.0)
loader = torch.utils.data.DataLoader(torch.arange(8.0), batch_size=4, pin_memory=True)
pinned = torch.ones(2).pin_memory()
moved = pinned.to("cuda", non_blocking=True)
pinned.zero_()
generator = torch.Generator(device="cuda").manual_seed(1)
numbered, plain = nn.Linear(2, 2).to(0), torch.ones(2).to(0)
with torch.device("cuda"):
    within = str(torch.ones(2).device)
try:
    torch.cuda.CUDAGraph()
    refused = ""
except RuntimeError as error:
    refused = str(error)
found["cuda"] = {
    "available": torch.cuda.is_available(),
    "count": torch.cuda.device_count(),
    "name": torch.cuda.get_device_name(0),
    "memory": torch.cuda.get_device_properties(0).total_memory,
    "devices": [str(left.device), str(next(model.parameters()).device), str(kept.device), left.is_cuda, kept.is_cuda],
    "numbered": [str(numbered.weight.device), str(plain.device), plain.get_device(), within],
    "same": before is left,
    "kept": kept[0, 0].item(),
    "moved": moved.tolist(),
    "batches": [batch.to("cuda").tolist() for batch in loader],
    "drawn": torch.rand(2, generator=generator, device="cuda").shape[0],
    "autocast": str((torch.autocast("cuda").__enter__(), left @ right)[1].dtype),
    "compiled": torch.compile(model) is model,
    "refused": refused,
}
torch.linalg.svd(torch.rand(1_000_000, 2), full_matrices=False)
print(json.dumps(found))
