"""GPUs, by the numbers of their data sheets, and the roofline by which an operation's time is computed. Pure; no torch.

Peaks are those of dense matrix products on tensor (matrix) cores, without sparsity, in FLOP/s by dtype; float32 is the
peak without TF32. Memory bandwidths are in byte/s.

Sources of the peaks, bandwidths and memory sizes:
a100   NVIDIA A100 80 GB SXM data sheet (nvidia.com/en-us/data-center/a100)
h100   NVIDIA H100 SXM data sheet (nvidia.com/en-us/data-center/h100), halved where it counts sparsity
h200   NVIDIA H200 SXM data sheet (nvidia.com/en-us/data-center/h200), halved where it counts sparsity
b200   NVIDIA DGX B200 data sheet, an eighth of it, halved where it counts sparsity; float64 and float32 of HGX B200
l40s   NVIDIA L40S data sheet (nvidia.com/en-us/data-center/l40s); float64 at 1/64 of float32 (Ada white paper)
v100   NVIDIA V100 SXM2 32 GB data sheet (nvidia.com/en-us/data-center/v100)
mi300x AMD Instinct MI300X data sheet (amd.com/en/products/accelerators/instinct/mi300/mi300x.html)

`efficiency` is the share of the bfloat16 peak that the best of many matrix products reached in PyTorch (MAMF), measured
by S. Bekman (github.com/stas00/ml-engineering, compute/accelerator/README.md, August 2026): 271.2 of 312 TFLOP/s on
A100, 794.5 of 989 on H100 (H200: the same), 1745 of 2250 on B200, 668.4 of 1300 on MI300X. L40S and V100 are not in
that table and have H100's share. Smaller products reach less: give `efficiency` or a table of kernel times if you know
better.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MEMORY_EFFICIENCY = 0.84
"""Share of the bandwidth that a kernel reaches: coalesced loads on an H100 were measured at 2.8 of 3.35 TB/s with
Nsight Compute (mikamirai.com/blog/gpu-memory-bandwidth, March 2026)."""

LAUNCH_S = 4e-6
"""What each kernel takes besides, in s: asynchronous launches of empty kernels were measured at 2.2 us (P100) and 5.7
us (K80) at CSCS (the references of ReFrame's kernel_latency test), and this is the middle."""

EFFICIENCY = 0.803
"""The share of the peak of a GPU for which there is no measurement: that of an H100."""

DTYPES = ("float64", "float32", "tf32", "float16", "bfloat16", "float8", "int8")
"""Kinds of numbers that can have a peak of their own; all others have that of float32."""


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU. `flops` are peaks in FLOP/s by dtype, one of them for float32; `bandwidth_bps` is in byte/s, `launch_s` in
    s, `memory_bytes` in bytes. `efficiency` and `memory_efficiency` are the shares of peak and bandwidth that kernels
    reach. `base` is the model in the table that it was made from, if any."""

    flops: tuple[tuple[str, float], ...]
    bandwidth_bps: float
    memory_bytes: int = 80 * 10**9
    launch_s: float = LAUNCH_S
    efficiency: float = EFFICIENCY
    memory_efficiency: float = MEMORY_EFFICIENCY
    title: str = "Longhaul's GPU"
    capability: tuple[int, int] = (9, 0)
    multiprocessors: int = 132
    base: str | None = None

    def peak(self, dtype: str) -> float:
        """Return the peak in FLOP/s for a dtype, by a name such as "bfloat16" or "tf32"."""
        peaks = dict(self.flops)
        kind = "float8" if dtype.startswith("float8") else dtype
        return peaks.get(kind, peaks["float32"])

    def seconds(self, flops: float, moved_bytes: float, dtype: str) -> float:
        """Return the time of one kernel in s: the longer of computing and moving bytes, and the launch."""
        computing_s = flops / (self.peak(dtype) * self.efficiency)
        moving_s = moved_bytes / (self.bandwidth_bps * self.memory_efficiency)
        return max(computing_s, moving_s) + self.launch_s

    def as_json(self) -> str:
        """Return the text that `of_text` reads."""
        return json.dumps({**vars(self), "flops": dict(self.flops)})


def _model(tera: Mapping[str, float], bandwidth_bps: float, gigabytes: int, **fields: Any) -> Gpu:
    flops = tuple((dtype, tera[dtype] * 1e12) for dtype in DTYPES if dtype in tera)
    return Gpu(flops=flops, bandwidth_bps=bandwidth_bps, memory_bytes=gigabytes * 10**9, **fields)


_HOPPER = {
    "float64": 67,
    "float32": 67,
    "tf32": 494.5,
    "float16": 989.5,
    "bfloat16": 989.5,
    "float8": 1979,
    "int8": 1979,
}

MODELS: Mapping[str, Gpu] = {
    "a100": _model(
        {"float64": 19.5, "float32": 19.5, "tf32": 156, "float16": 312, "bfloat16": 312, "int8": 624},
        2.039e12,
        80,
        efficiency=0.869,
        title="NVIDIA A100-SXM4-80GB",
        capability=(8, 0),
        multiprocessors=108,
        base="a100",
    ),
    "h100": _model(_HOPPER, 3.35e12, 80, efficiency=0.803, title="NVIDIA H100 80GB HBM3", base="h100"),
    "h200": _model(_HOPPER, 4.8e12, 141, efficiency=0.803, title="NVIDIA H200", base="h200"),
    "b200": _model(
        {
            "float64": 40,
            "float32": 80,
            "tf32": 1125,
            "float16": 2250,
            "bfloat16": 2250,
            "float8": 4500,
            "int8": 4500,
        },
        8e12,
        180,
        efficiency=0.776,
        title="NVIDIA B200",
        capability=(10, 0),
        multiprocessors=148,
        base="b200",
    ),
    "l40s": _model(
        {
            "float64": 91.6 / 64,
            "float32": 91.6,
            "tf32": 183,
            "float16": 362.05,
            "bfloat16": 362.05,
            "float8": 733,
            "int8": 733,
        },
        864e9,
        48,
        title="NVIDIA L40S",
        capability=(8, 9),
        multiprocessors=142,
        base="l40s",
    ),
    "v100": _model(
        {"float64": 7.8, "float32": 15.7, "float16": 125},
        900e9,
        32,
        title="Tesla V100-SXM2-32GB",
        capability=(7, 0),
        multiprocessors=80,
        base="v100",
    ),
    "mi300x": _model(
        {
            "float64": 163.4,
            "float32": 163.4,
            "tf32": 653.7,
            "float16": 1307.4,
            "bfloat16": 1307.4,
            "float8": 2614.9,
            "int8": 2614.9,
        },
        5.3e12,
        192,
        efficiency=0.514,
        title="AMD Instinct MI300X",
        capability=(9, 4),
        multiprocessors=304,
        base="mi300x",
    ),
}
"""GPUs by name."""


def of_text(text: str) -> Gpu:
    """Return the GPU of a name or of JSON (`Gpu.as_json`); raises ValueError with a sentence."""
    if text in MODELS:
        return MODELS[text]
    try:
        fields = json.loads(text)
        fields |= {"flops": tuple(fields["flops"].items()), "capability": tuple(fields["capability"])}
        return Gpu(**fields)
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ValueError(f"{text[:80]!r} is not a GPU; allowed: {', '.join(MODELS)}, or what the run sets") from None
