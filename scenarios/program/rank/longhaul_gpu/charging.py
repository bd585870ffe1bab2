"""Charges every operation of torch to the GPU's current stream."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import Parameter
from torch.utils import data
from torch.utils._python_dispatch import TorchDispatchMode

from . import costs
from .accounting import Accounts
from .devices import ON_HOST
from .kernels import KernelTable, Shapes
from .models import Gpu
from .recording import Recorder
from .streams import Device

if TYPE_CHECKING:
    from .fake import Fake  # slow to import, as it imports torch's own fake tensors

_PLAIN = (Tensor, Parameter)
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
                self._device.wait(self._device.current.end_ns)
            return func(*args, **kwargs) if self._fake is None else self._fake.collect(func, args, kwargs)
        is_in_loader = data.get_worker_info() is not None  # which computes on the host
        out = func(*args, **kwargs) if self._fake is None or is_in_loader else self._fake.compute(func, args, kwargs)
        if func.namespace in _UNCHARGED or is_in_loader:
            return out
        if _is_host_only(args, kwargs):
            return out
        if not costs.has_no_kernel(func):
            self._charge(func, args, kwargs, out)
        if costs.blocks_host(func, args):
            self._device.wait(self._device.current.end_ns)
        return out

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
