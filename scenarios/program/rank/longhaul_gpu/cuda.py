"""Serves `cuda` devices, torch.cuda and mixed precision for a script, on CPU tensors."""

import functools
import sys
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, NoReturn

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _device

from .cuda_streams import Event, Stream, StreamContext, current_stream, set_stream
from .devices import ON_HOST, as_cpu, is_cuda
from .models import Gpu
from .streams import Device

_GPU = torch.device("cuda", 0)
_READS = frozenset(("numpy", "tolist", "__repr__", "__array__", "__bool__"))
_PINNED = "_longhaul_pinned"  # an attribute of tensors, as ON_HOST
_DEVICE, _IS_CUDA = torch.Tensor.device.__get__, torch.Tensor.is_cuda.__get__
_IDLE = """init empty_cache ipc_collect manual_seed manual_seed_all seed seed_all set_rng_state set_rng_state_all
reset_peak_memory_stats reset_max_memory_allocated reset_max_memory_cached reset_accumulated_memory_stats
set_per_process_memory_fraction set_sync_debug_mode"""  # functions of torch.cuda that do nothing
_told = set[str]()

Read = Callable[[str, Any], Any]
"""Called with the name of a function that reads a tensor, and the tensor; returns its result, None if it is to run."""


def serve(gpu: Gpu, device: Device, read: "Read | None" = None) -> "Redirected":
    """Serve `cuda` in this process; return the mode that has to be entered. `read` is asked before a tensor is read."""
    mode = Redirected(device, read)
    _serve_module(gpu, device, mode)
    _serve_precision()
    _serve_files()
    _serve_optimizers()
    _leave_out_compiling()
    torch.Generator = _Generator
    torch.Tensor.pin_memory = _pinned
    torch.Tensor.is_pinned = lambda self, *_, **__: hasattr(self, _PINNED)
    to = torch.nn.Module.to

    def module_to(self: Any, *args: Any, **kwargs: Any) -> Any:
        return to(self, *map(mode.mapped, args[:1]), *args[1:], **mode.in_arguments(kwargs))

    torch.nn.Module.to = functools.wraps(to)(module_to)
    context = _device.DeviceContext
    made = context.__init__
    context.__init__ = functools.wraps(made)(lambda self, where: made(self, mode.mapped(where)))
    return mode


def tell_once(sentence: str) -> None:
    """Print a sentence on stderr the first time it is told."""
    if sentence not in _told:
        _told.add(sentence)
        print(f"longhaul: {sentence}", file=sys.stderr, flush=True)


class Redirected(TorchFunctionMode):
    """Turns `cuda` devices into the CPU in all calls, and blocks the host where a tensor is read.

    A script that has named a `cuda` device sees its tensors there (`device`, `is_cuda`); torch itself sees the CPU.
    """

    def __init__(self, device: Device, read: Read | None = None) -> None:
        super().__init__()
        self._device, self._read, self._is_used = device, read, False

    def mapped(self, value: Any) -> Any:
        """Return a value, but the CPU for a `cuda` device, and remember that the script uses one."""
        self._is_used = self._is_used or is_cuda(value)
        return as_cpu(value)

    def in_arguments(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return named arguments with a `cuda` device mapped."""
        return {**kwargs, "device": self.mapped(kwargs["device"])} if "device" in kwargs else kwargs

    def use(self) -> None:
        """Remember that the script uses a `cuda` device."""
        self._is_used = True

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name == "__get__":
            return self._attribute(func, args, kwargs or {})
        kwargs = dict(kwargs or {})
        if kwargs.get("pin_memory"):
            kwargs.pop("pin_memory")
        if name == "to":
            return self._to(func, args, kwargs)
        if name == "cuda":
            self.use()
            return _arrived(args[0], copy=False)
        if name in _READS:
            self._device.catch_up()
            if self._read is not None and (given := self._read(name, args[0])) is not None:
                return given
        kwargs = self.in_arguments(kwargs)
        if name == "get_device" and self._is_used and not _called_by_torch(2):
            return -1 if hasattr(args[0], ON_HOST) else 0
        if name == "type" and len(args) > 1 and isinstance(args[1], str):
            args = (args[0], args[1].replace("torch.cuda.", "torch."), *args[2:])
        out = func(*args, **kwargs)
        if name == "tensor" and str(kwargs.get("device", "cpu")) == "cpu" and _module(2).startswith("torch.optim"):
            setattr(out, ON_HOST, True)  # the counter of steps, which optimizers keep on the host
        return self._on_host(out, args[0]) if name == "cpu" else out

    def _attribute(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self._is_used or func not in (_DEVICE, _IS_CUDA) or _called_by_torch(3):
            return func(*args, **kwargs)
        on_host = args[0].is_meta or hasattr(args[0], ON_HOST)
        if func == _IS_CUDA:
            return not on_host
        return func(*args) if on_host else _GPU

    def _to(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tensor, *rest = args
        given = kwargs.get("device", rest[0] if rest else None)
        given = given if is_cuda(given) or isinstance(given, (str, torch.device)) else None
        rest[:1], kwargs = map(self.mapped, rest[:1]), self.in_arguments(kwargs)
        out = func(tensor, *rest, **kwargs)
        if is_cuda(given):
            return _arrived(out, copy=out is args[0] and hasattr(out, _PINNED))
        if given is not None and str(given) == "cpu":
            return self._on_host(out, args[0], waits=not kwargs.get("non_blocking"))
        return out

    def _on_host(self, out: Any, source: Any, *, waits: bool = True) -> Any:
        """Return a copy of a tensor of the GPU on the host, for which the host waits."""
        if not self._is_used or hasattr(source, ON_HOST):
            return out
        if waits:
            self._device.catch_up()
        copied = out.clone() if out is source else out
        setattr(copied, ON_HOST, True)
        return copied


def _arrived(tensor: Any, *, copy: bool) -> Any:
    """Return a tensor as one on the GPU: the same, unless the host's is to be used again, as pinned memory is."""
    if copy or hasattr(tensor, ON_HOST):
        return tensor.clone()
    return tensor


def _pinned(self: Any, *_: Any, **__: Any) -> Any:
    setattr(self, _PINNED, True)
    return self


def _called_by_torch(depth: int) -> bool:
    """Return whether the caller is code of torch, or of a backend of it: `depth` frames above this one."""
    return _module(depth + 1).partition(".")[0] in ("torch", "longhaul_torch")


def _module(depth: int) -> str:
    frame: Any = sys._getframe(depth)
    while frame.f_back is not None and frame.f_globals.get("__name__") == "torch.utils._device":
        frame = frame.f_back  # `with torch.device(...)` stands between
    return str(frame.f_globals.get("__name__", ""))


class _Generator(torch._C.Generator):
    """torch.Generator, on the CPU for `cuda` too."""

    def __new__(cls, device: Any = "cpu") -> "_Generator":
        made: _Generator = super().__new__(cls, as_cpu(device))
        return made


def _serve_module(gpu: Gpu, device: Device, mode: Redirected) -> None:
    cuda = torch.cuda
    properties = SimpleNamespace(
        name=gpu.title,
        major=gpu.capability[0],
        minor=gpu.capability[1],
        total_memory=gpu.memory_bytes,
        multi_processor_count=gpu.multiprocessors,
        warp_size=32,
        is_integrated=0,
        is_multi_gpu_board=0,
        gcnArchName="",
    )
    answers: dict[str, Any] = {
        "is_available": True,
        "is_initialized": True,
        "device_count": 1,
        "current_device": 0,
        "get_device_name": gpu.title,
        "get_device_capability": gpu.capability,
        "get_device_properties": properties,
        "get_arch_list": [f"sm_{gpu.capability[0]}{gpu.capability[1]}"],
        "can_device_access_peer": False,
        "is_bf16_supported": "bfloat16" in dict(gpu.flops),
        "mem_get_info": (gpu.memory_bytes, gpu.memory_bytes),
        "utilization": 0,
    }
    answers |= dict.fromkeys(_IDLE.split())
    for name, answer in answers.items():
        setattr(cuda, name, _answering(answer))
    for name in ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"):
        setattr(cuda, name, _not_counted(0))
    cuda.memory_stats, cuda.memory_snapshot = _not_counted({}), _not_counted([])
    cuda.memory_summary = _not_counted("")

    def set_device(device: Any) -> None:
        mode.use()
        _check_index(device)

    class OnDevice(nullcontext[None]):
        """torch.cuda.device: there is only one."""

        def __init__(self, device: Any) -> None:
            super().__init__()
            set_device(device)

    cuda.set_device, cuda.device, cuda.device_of = set_device, OnDevice, nullcontext
    cuda.synchronize = lambda *_, **__: device.wait(device.end_ns)
    cuda.get_rng_state = lambda *_, **__: torch.get_rng_state()
    cuda.get_rng_state_all = lambda: [torch.get_rng_state()]
    cuda.Stream = cuda.streams.Stream = Stream
    cuda.Event = cuda.streams.Event = Event
    cuda.StreamContext, cuda.stream = StreamContext, StreamContext
    cuda.current_stream, cuda.set_stream = current_stream, set_stream
    # FSDP2 takes its streams and events from the module of its tensors' device.
    torch.cpu.Stream, torch.cpu.Event, torch.cpu.current_stream = Stream, Event, current_stream
    torch.cpu.StreamContext, torch.cpu.stream = StreamContext, StreamContext
    cuda.default_stream = lambda *_: Stream.of(device.default)
    torch.Tensor.record_stream = lambda *_: None
    for name in ("range_push", "range_pop", "mark", "range_start", "range_end"):
        setattr(cuda.nvtx, name, _answering(None))
    for name in ("CUDAGraph", "graph", "make_graphed_callables", "ExternalStream", "MemPool"):
        setattr(cuda, name, _unserved(f"torch.cuda.{name}"))
    cuda._lazy_init = _unserved("this function of torch.cuda")
    if hasattr(torch, "accelerator"):
        _serve_accelerator(cuda, device)


def _serve_accelerator(cuda: Any, device: Device) -> None:
    served: dict[str, Any] = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device_index": lambda: 0,
        "current_device_idx": lambda: 0,
        "set_device_index": cuda.set_device,
        "set_device_idx": cuda.set_device,
        "current_accelerator": lambda *_, **__: None if _called_by_torch(2) else torch.device("cuda"),
        "synchronize": cuda.synchronize,
        "current_stream": current_stream,
        "set_stream": set_stream,
    }
    for name, function in served.items():
        if hasattr(torch.accelerator, name):
            setattr(torch.accelerator, name, function)


def _check_index(device: Any) -> None:
    index = device if isinstance(device, int) else torch.device(device).index
    if index not in (None, 0, -1):
        raise RuntimeError(f"there is no cuda device {index}; allowed: 0, as each rank has one GPU (LOCAL_RANK is 0)")


def _answering(answer: Any) -> Callable[..., Any]:
    return lambda *_, **__: answer


def _not_counted(answer: Any) -> Callable[..., Any]:
    def call(*_: Any, **__: Any) -> Any:
        tell_once("memory of the GPU is not counted: torch.cuda's functions of memory return 0, or nothing")
        return answer

    return call


def _unserved(what: str) -> Callable[..., NoReturn]:
    def call(*_: Any, **__: Any) -> NoReturn:
        raise RuntimeError(
            f"{what} needs a real GPU: with program.gpu Longhaul serves streams, events, devices and mixed precision "
            "on CPU tensors, but no CUDA graphs, no CUDA or Triton kernels and no memory pools"
        )

    return call


def _serve_precision() -> None:
    from torch.amp import grad_scaler

    autocast = torch.amp.autocast_mode.autocast
    entered = autocast.__init__
    is_enabled, get_dtype = torch.is_autocast_enabled, torch.get_autocast_dtype

    def make_autocast(self: Any, device_type: Any, dtype: Any = None, *args: Any, **kwargs: Any) -> None:
        if is_cuda(device_type) and dtype is None:
            dtype = torch.float16  # CUDA's default; that of the CPU is bfloat16
        entered(self, as_cpu(device_type), dtype, *args, **kwargs)

    autocast.__init__ = functools.wraps(entered)(make_autocast)
    torch.is_autocast_enabled = lambda device_type="cuda": is_enabled(as_cpu(device_type))
    torch.get_autocast_dtype = lambda device_type: get_dtype(as_cpu(device_type) if is_enabled("cpu") else device_type)
    scaler = grad_scaler.GradScaler
    scaled = scaler.__init__

    def make_scaler(self: Any, device: Any = "cuda", *args: Any, **kwargs: Any) -> None:
        scaled(self, as_cpu(device), *args, **kwargs)

    scaler.__init__ = functools.wraps(scaled)(make_scaler)


def _serve_files() -> None:
    load = torch.load

    def load_on_cpu(file: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        if map_location is None or is_cuda(map_location):
            map_location = "cpu"
        elif isinstance(map_location, dict):
            map_location = {name: as_cpu(where) for name, where in map_location.items()}
        return load(file, map_location, *args, **kwargs)

    torch.load = torch.serialization.load = functools.wraps(load)(load_on_cpu)


def _serve_optimizers() -> None:
    """Have optimizers and the clipping of gradients choose foreach kernels, as they do for CUDA's tensors."""
    from torch.optim import optimizer
    from torch.utils import _foreach_utils

    devices = _foreach_utils._get_foreach_kernels_supported_devices

    def with_cpu() -> list[str]:
        return [*devices(), "cpu"]

    optimizer._get_foreach_kernels_supported_devices = with_cpu
    _foreach_utils._get_foreach_kernels_supported_devices = with_cpu


def _leave_out_compiling() -> None:
    def uncompiled(model: Any = None, **_: Any) -> Any:
        tell_once(
            "torch.compile is left out: the model runs eagerly, and each of its operations is charged as a kernel"
        )
        return (lambda function: function) if model is None else model

    torch.compile = uncompiled
    torch.nn.Module.compile = lambda self, *_, **__: uncompiled(self) and None
