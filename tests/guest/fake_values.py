"""What reads of fake tensors give, and what has values, natively; prints a line of JSON."""

import json
import resource

import torch
from longhaul_gpu.activation import ACCOUNTS  # type: ignore[import-not-found]
from longhaul_gpu.fake import is_fake  # type: ignore[import-not-found]

before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
large = torch.randn(30_000, 30_000, device="cuda")  # 3.6 GB
product = (large @ large).relu().sum()
large.add_(1)
small, host = torch.ones(4, 4), torch.tensor([float(i) for i in range(50_000)])
part = torch.ones(4, 4)
part[0] = large[0, :4]
found = {
    "taken": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before,
    "shape": [*(large.t() @ large[:, :7]).shape],
    "item": product.item(),
    "float": f"{product:.3f}",
    "list": large[0, :3].tolist(),
    "text": repr(large),
    "bool": bool(product > 0),
    "equal": torch.equal(large, large),
    "fake": [is_fake(one) for one in (large, large[0], large.cpu(), product, part, small + product)],
    "real": [is_fake(one) for one in (small, host, small @ small, torch.randint(9, (100_000,)), torch.zeros(3))],
    "dtypes": [str(one.dtype) for one in (large.bfloat16() * 2.5, large.int() * 2.5, large.int() * 3, large > 0)],
    "values": [(small @ small).sum().item(), host.sum().item(), int((torch.arange(100_000) > 4).sum())],
}
found["reads"] = ACCOUNTS.fake_reads
refused = []
for shaped_by_values in (large.nonzero, lambda: large[large > 0], lambda: torch.unique(large)):
    try:
        shaped_by_values()
    except RuntimeError as error:
        refused.append(str(error))
found["refused"] = refused
print(json.dumps(found))
