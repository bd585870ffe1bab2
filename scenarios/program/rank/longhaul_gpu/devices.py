"""Devices as a script names them, and as its tensors have them: `cuda` is the CPU."""

from typing import Any

import torch

ON_HOST = "_longhaul_on_host"
"""The attribute by which a tensor is known to be the host's: nothing that is done with it alone is charged."""


def is_cuda(value: Any) -> bool:
    """Return whether a value names a `cuda` device: a torch.device, text, or a number."""
    if isinstance(value, torch.device):
        return bool(value.type == "cuda")
    if isinstance(value, int):
        return not isinstance(value, bool)
    return isinstance(value, str) and (value == "cuda" or value.startswith("cuda:"))


def as_cpu(value: Any) -> Any:
    """Return a value, but the CPU for a `cuda` device."""
    if not is_cuda(value):
        return value
    return torch.device("cpu") if isinstance(value, torch.device) else "cpu"
