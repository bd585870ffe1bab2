"""Serves scripts for NCCL and CUDA on groups of CPU tensors: backends, DistributedDataParallel, device meshes."""

import functools
import os
import sys
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from .devices import as_cpu

_REPLACED = "LONGHAUL_BACKEND"  # by it the backend `longhaul` takes the place of every other


def host_waits() -> bool:
    """Return whether the host itself waits for the stream before a collective: the backend `longhaul` does so."""
    return not os.environ.get(_REPLACED)


def serve() -> None:
    """Have groups for NCCL become groups for Gloo, unless another backend replaces all, and accept `cuda` devices."""
    if not dist.is_available():
        return
    from torch.distributed import device_mesh

    for name, position in (("init_process_group", 0), ("new_group", 2)):
        _replace(dist, name, functools.partial(_without_nccl, position=position))
    _replace(dist, "is_nccl_available", lambda _: lambda: True)
    _replace(device_mesh, "init_device_mesh", _with_cpu_first)
    made = device_mesh.DeviceMesh.__init__

    def make_mesh(self: Any, device_type: Any, *args: Any, **kwargs: Any) -> None:
        made(self, as_cpu(device_type), *args, **kwargs)

    device_mesh.DeviceMesh.__init__ = functools.wraps(made)(make_mesh)
    wrapped = DistributedDataParallel.__init__

    def make_parallel(
        self: Any, module: Any, device_ids: Any = None, output_device: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        wrapped(self, module, None, None, *args, **kwargs)

    DistributedDataParallel.__init__ = functools.wraps(wrapped)(make_parallel)


def _replace(owner: Any, name: str, wrapper: Callable[[Any], Any]) -> None:
    """Wrap a function in every module of torch.distributed that has imported it."""
    original = getattr(owner, name)
    wrapped = functools.wraps(original)(wrapper(original))
    for module in [one for key, one in list(sys.modules.items()) if key.startswith("torch.distributed")]:
        if vars(module).get(name) is original:
            setattr(module, name, wrapped)


def _without_nccl(original: Any, position: int) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        kwargs.pop("device_id", None)
        given = args[position] if len(args) > position else kwargs.get("backend")
        is_unnamed = given is None and not dist.is_initialized()
        if host_waits() and (is_unnamed or "nccl" in str(given).lower()):
            if len(args) > position:
                args = (*args[:position], "gloo", *args[position + 1 :])
            else:
                kwargs["backend"] = "gloo"
        return original(*args, **kwargs)

    return call


def _with_cpu_first(original: Any) -> Any:
    def call(device_type: Any, *args: Any, **kwargs: Any) -> Any:
        return original(as_cpu(device_type), *args, **kwargs)

    return call
