"""Charges every operation of torch to the GPU's current stream."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor, empty_like, ops, strided
from torch._C import _AutoDispatchBelowAutograd
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import Parameter
from torch.utils import data
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from . import costs
from .accounting import Accounts
from .devices import ON_HOST
from .kernels import KernelTable, Shapes
from .models import Gpu
from .recording import Recorder
from .streams import Deferred, Device

if TYPE_CHECKING:
    from .fake import Fake  # slow to import, as it imports torch's own fake tensors

_PLAIN = (Tensor, Parameter)
_TO_COPY = ops.aten._to_copy.default
_COLLECTIVES = ("c10d", "_c10d_functional")
_NO_COLLECTIVE = ("wait_tensor", "_resize_storage_")
_UNCHARGED = ("prim", "prims", "profiler", "debugprims", "symm_mem", "inductor")


def _shapes(tensors: Iterable[Any]) -> Shapes:
    return tuple(tuple(one.shape) for one in tensors if one.dim())


def _is_host_only(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    tensors = costs.tensors_of((args, kwargs))
    first = next(tensors, None)
    return first is not None and hasattr(first, ON_HOST) and all(hasattr(one, ON_HOST) for one in tensors)


class Charging(TorchDispatchMode):
    """Charges each operation its time on the current stream, and blocks the host where a real one would be blocked.

    A collective on the current stream begins when the stream has computed what it holds: with `waits_for_ready` the
    host waits for that, otherwise the backend does (`longhaul_gpu.ready_ns`). With `fake`, operations are computed
    without values.
    """

    def __init__(
        self,
        gpu: Gpu,
        device: Device,
        accounts: Accounts,
        kernels: KernelTable | None = None,
        *,
        waits_for_ready: Callable[[], bool] = lambda: True,
        recorder: Recorder | None = None,
        fake: "Fake | None" = None,
    ) -> None:
        super().__init__()
        self._gpu, self._device, self._accounts, self._kernels = gpu, device, accounts, kernels
        self._waits_for_ready, self._fake = waits_for_ready, fake
        self._recorder = recorder or Recorder()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if FakeTensor in types:
            return func(*args, **kwargs)  # torch asks itself for shapes, as DTensor does
        if any(one not in _PLAIN for one in types):
            return NotImplemented  # a DTensor, whose local tensors come here
        if func.namespace in _COLLECTIVES:
            name = func._overloadpacket.__name__
            if name not in _NO_COLLECTIVE and (self._waits_for_ready() or "barrier" in name):
                self._device.catch_up()
            return func(*args, **kwargs) if self._fake is None else self._fake.collect(func, args, kwargs)
        has_kernel, blocks = not costs.has_no_kernel(func), costs.blocks_host(func, args)
        is_in_loader = data.get_worker_info() is not None  # which computes on the host
        is_charged = func.namespace not in _UNCHARGED and not is_in_loader and not _is_host_only(args, kwargs)
        if self._device.current.due and (has_kernel or blocks):
            if is_charged and not blocks and (later := self._deferred(func, args, kwargs)) is not None:
                return later[0]
            self._device.current.settle()  # what is due may write what the operation reads
        out = func(*args, **kwargs) if self._fake is None or is_in_loader else self._fake.compute(func, args, kwargs)
        if not is_charged:
            return out
        if has_kernel:
            self._charge(func, args, kwargs, out)
        if blocks:
            self._device.catch_up()
        return out

    def _deferred(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any] | None:
        """Have an operation be done after what is due; return its result, without values until then, in a tuple. None
        if the result is not known before: it is for copies to another dtype, and for what only writes its arguments."""
        if self._fake is not None and any(map(self._fake.is_fake, costs.tensors_of((args, kwargs)))):
            out = self._fake.compute(func, args, kwargs)
            Deferred(self._device, lambda: self._charge(func, args, kwargs, out))
            return (out,)
        if func is _TO_COPY and kwargs.keys() <= {"dtype"} and args[0].layout is strided:
            out = empty_like(args[0], **kwargs)
            work: Callable[[], Any] = partial(out.copy_, args[0])
        elif func._schema.is_mutable and all(one.alias_info is not None for one in func._schema.returns):
            written = list(costs.written_by(func, args, kwargs))
            if len(func._schema.returns) > 1:
                return None
            out = written[0] if func._schema.returns else None
            work = partial(func, *args, **kwargs)
        else:
            return None

        def run() -> None:
            with _disable_current_modes(), _AutoDispatchBelowAutograd():  # the mode may be on, or not
                work()
                self._charge(func, args, kwargs, out)

        Deferred(self._device, run)
        return (out,)

    def _charge(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        operation = f"{func.namespace}::{func._overloadpacket.__name__}"
        cost = costs.cost_of(func, args, kwargs, out)
        seconds = None
        if self._kernels is not None and self._kernels.has(operation):
            shapes = _shapes(costs.tensors_of((args, kwargs)))
            unlisted = _shapes(one for one in (*args, *kwargs.values()) if isinstance(one, Tensor))
            dtype = "float32" if cost.dtype == "tf32" else cost.dtype
            seconds = self._kernels.seconds(operation, shapes, dtype, unlisted=unlisted)
        if seconds is None:
            took_ns = self._device.busy(self._gpu.seconds(cost.flops, cost.moved_bytes, cost.dtype))
            if not cost.is_known:
                self._accounts.unknown.add(operation)
        else:
            took_ns = self._device.busy(seconds)
            self._accounts.measured_ns += took_ns
        self._accounts.add(operation, took_ns, cost.flops, cost.moved_bytes)
        at_peak_s = cost.flops / self._gpu.peak(cost.dtype)
        self._recorder.kernel(self._device.current, operation, took_ns, cost.flops, at_peak_s)
