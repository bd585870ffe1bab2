"""Fake tensors (`program.tensors = "fake"`): shapes are computed, values are not, and memory is reserved but not used.

A fake tensor is an ordinary CPU tensor whose storage carries a mark, so that autograd, DistributedDataParallel and
FSDP2 take it for what it is by its type. Nothing reads or writes its memory: the kernel gives none for untouched pages.
An operation is given to torch's FakeTensorMode, which knows the shapes, strides and dtypes of its results.

Fake are large tensors that a script makes, all results that depend on one, and what such a result is written to. Small
tensors and those of integers that do not depend on a fake one have values: torch.distributed itself exchanges some.
"""

import ctypes
import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedOperatorException,
)

from . import costs
from .accounting import Accounts

MOST_FLOAT_BYTES = 64 * 1024
"""A new tensor of floats has values up to this size, unless it depends on a fake one."""

MOST_BYTES = 64 * 1024 * 1024
"""The same for tensors of integers and bytes, which hold indices, masks and pickled objects."""

_MARK = "_longhaul_fake"  # an attribute of storages
_M_MMAP_THRESHOLD = -3  # of glibc's mallopt
_MOST_PLACES = 5
_MOST_KNOWN = 20_000
_MAKES_EMPTY = frozenset(("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"))
_WITHOUT_VALUES = frozenset(("_local_scalar_dense", "equal"))
_no_function: Callable[[], AbstractContextManager[None]] = torch._C.DisableTorchFunction
_empty_strided = torch.ops.aten.empty_strided.default
_zero_ = torch.ops.aten.zero_.default


def is_fake(tensor: Any) -> bool:
    """Return whether a tensor has no values."""
    with _no_function():
        return _is_marked(tensor)


def mark(tensors: Iterable[Any]) -> None:
    """Make tensors fake: their storages, and with them all tensors that share these."""
    with _no_function():
        for one in tensors:
            if _has_storage(one):
                setattr(one.untyped_storage(), _MARK, True)


def _has_storage(tensor: Any) -> bool:
    return bool(tensor.layout is torch.strided and not tensor.is_meta)


def _is_marked(tensor: Any) -> bool:
    return _has_storage(tensor) and hasattr(tensor.untyped_storage(), _MARK)


def _is_large(tensor: Any) -> bool:
    most = MOST_FLOAT_BYTES if tensor.is_floating_point() or tensor.is_complex() else MOST_BYTES
    return bool(tensor.untyped_storage().nbytes() > most)


def reserve_large() -> None:
    """Have the allocator give each large tensor pages of its own, which take no memory until they are touched. Freed
    memory that has been touched would otherwise be used again; only glibc has this setting."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, MOST_FLOAT_BYTES)


class Fake:
    """Computes operations: those of which an argument or a result is fake without values, others as torch does.

    What reads a value gets 0, and what decides by one "false". `accounts` count such reads, and stderr tells where.
    """

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self._mode = FakeTensorMode()
        self._known = dict[Any, Any]()
        self._places = set[str]()

    def compute(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return what an operation returns; raises RuntimeError with a sentence if its shapes depend on values."""
        name = func._overloadpacket.__name__
        with _no_function():
            tensors = list(costs.tensors_of((args, kwargs)))
            depends = any(map(_is_marked, tensors))
            is_meta = any(one.is_meta for one in tensors) or torch.device(kwargs.get("device") or "cpu").type == "meta"
        if depends and name in _WITHOUT_VALUES:
            self.tell_read(decides=name == "equal")
            return False if name == "equal" else torch.empty(0, dtype=tensors[0].dtype).sum().item()
        if is_meta or costs.has_no_kernel(func):
            out = func(*args, **kwargs)
            if name in _MAKES_EMPTY:
                with _no_function():
                    mark(one for one in costs.tensors_of(out) if _has_storage(one) and _is_large(one))
            return out
        written = list(costs.written_by(func, args, kwargs))
        if all(one.alias_info is not None and one.alias_info.is_write for one in func._schema.returns):
            if not depends:
                return func(*args, **kwargs)
            mark(written)
            return _returned(func, args, kwargs, None)
        return self._made(func, args, kwargs, tensors, written, depends=depends)

    def _made(self, func: Any, args: Any, kwargs: Any, tensors: list[Any], written: list[Any], *, depends: bool) -> Any:
        """Return what an operation returns that makes tensors."""
        if depends and all(one.dim() == 0 for one in tensors):
            out = func(*args, **kwargs)  # torch alone knows the dtype, as some of them may be numbers of Python
            mark([*written, *costs.tensors_of(out)])
            return out
        with _no_function():
            shapes = self._shapes(func, args, kwargs, depends=depends)
            is_computed = shapes is None or not (depends or any(map(_is_large, costs.tensors_of(shapes))))
        if is_computed:
            return func(*args, **kwargs)
        mark(written)
        with _no_function():
            made = _mapped(shapes, _made)
        return _returned(func, args, kwargs, made)

    def is_fake(self, tensor: Any) -> bool:
        """Return whether a tensor has no values."""
        return is_fake(tensor)

    def collect(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return what a collective returns; its tensors have no values afterwards if one of them has none."""
        with _no_function():
            tensors = list(costs.tensors_of((args, kwargs)))
            depends = any(map(_is_marked, tensors))
        if not depends:
            return func(*args, **kwargs)
        mark(tensors)
        out = func(*args, **kwargs)
        mark(costs.tensors_of(out))
        return out

    def read(self, name: str, tensor: Any) -> Any:
        """Note that a function of this name reads a tensor; return what it gives instead of its result, if anything."""
        if not is_fake(tensor):
            return None
        if name == "__bool__":
            self.tell_read(decides=True)
            return False
        if name == "__repr__":
            return f"tensor(..., size={tuple(tensor.shape)}, dtype={tensor.dtype}, without values)"
        self.tell_read(decides=False)
        return None

    def tell_read(self, *, decides: bool) -> None:
        """Count a read of a fake tensor's value, and tell where the script does so, for the first five places."""
        self._accounts.fake_reads += 1
        what = "decides by the value of" if decides else "reads the value of"
        told = f"{_place()} {what} a fake tensor (program.tensors), which has none: "
        told += "false is taken for it" if decides else "it gets 0"
        if told not in self._places and len(self._places) < _MOST_PLACES:
            self._places.add(told)
            print(f"longhaul: {told}", file=sys.stderr, flush=True)

    def _shapes(self, func: Any, args: Any, kwargs: Any, *, depends: bool) -> Any:
        """Return what an operation returns, with tensors of the device meta for its tensors; None if torch has to
        compute it, as a tensor is not strided or as the result depends on values that there are."""
        try:
            key = (func, torch.get_default_dtype(), _key(args, func), _key(kwargs, func))
            if key in self._known:
                return self._known[key]
        except TypeError:
            key = None
        if any(one.layout is not torch.strided for one in costs.tensors_of((args, kwargs))):
            return None
        args, kwargs = _mapped((args, kwargs), _argument_as_meta)
        try:
            with self._mode:
                args, kwargs = _mapped((args, kwargs), _as_fake)
                out = func(*args, **kwargs)
        except (DynamicOutputShapeException, DataDependentOutputException):
            if not depends:
                return None
            raise RuntimeError(
                f"{func._schema.name} at {_place()} has a result whose shape depends on the values of fake tensors "
                '(program.tensors), which have none; allowed: program.tensors = "real"'
            ) from None
        except UnsupportedOperatorException:
            if not depends:
                return None
            raise RuntimeError(
                f"{func._schema.name} at {_place()} has no kernel for the device meta, so that the shapes of its "
                'results are not known for fake tensors; allowed: program.tensors = "real"'
            ) from None
        if any(one.layout is not torch.strided for one in costs.tensors_of(out)):
            return None
        found = _mapped(out, _as_meta)
        if key is not None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[key] = found
        return found


def _mapped(tree: Any, change: Callable[[Any], Any]) -> Any:
    """Return arguments or results with something else for each tensor."""
    if isinstance(tree, torch.Tensor):
        return change(tree)
    if isinstance(tree, (list, tuple)):
        return type(tree)(_mapped(one, change) for one in tree)
    if isinstance(tree, dict):
        return {name: _mapped(one, change) for name, one in tree.items()}
    return tree


def _as_fake(tensor: Any) -> Any:
    """Return one of FakeTensorMode's tensors like this one, within that mode."""
    return _empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=torch.device("cpu"))


def _as_meta(tensor: Any) -> Any:
    """Return a tensor like this one of the device meta."""
    return _empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=torch.device("meta"))


def _argument_as_meta(tensor: Any) -> Any:
    """Return an argument as one of the device meta; for a number of Python one that promotes dtypes as that does."""
    if not _is_number(tensor):
        return _as_meta(tensor)
    return torch.empty((), dtype=torch.result_type(torch.empty(0, dtype=torch.bool), tensor), device="meta")


def _made(like: Any) -> Any:
    """Return a fake tensor like one of the device meta; a small one is filled with zeros."""
    made = _empty_strided(like.shape, like.stride(), dtype=like.dtype, device=torch.device("cpu"))
    if not _is_large(made):
        _zero_(made)
    setattr(made.untyped_storage(), _MARK, True)
    return made


def _is_number(tensor: Any) -> bool:
    """Return whether a tensor stands for a number of Python, which takes part in the promotion of dtypes otherwise."""
    if tensor.dim() or tensor.is_meta or tensor.dtype not in _OF_NUMBERS:
        return False
    return bool(torch.result_type(_OF_NUMBERS[tensor.dtype], tensor) != tensor.dtype)


_OF_NUMBERS = {
    torch.float64: torch.zeros(1, dtype=torch.float32),
    torch.int64: torch.zeros(1, dtype=torch.int32),
    torch.complex128: torch.zeros(1, dtype=torch.complex64),
}


def _key(tree: Any, func: Any) -> Any:
    """Return a key by which the shapes of an operation's results are known; raises TypeError if there is none."""
    if isinstance(tree, torch.Tensor):
        return tree.dtype, tree.layout, tuple(tree.shape), tree.stride(), _is_number(tree)
    if isinstance(tree, (list, tuple)):
        return tuple(_key(one, func) for one in tree)
    if isinstance(tree, dict):
        return tuple((name, _key(one, func)) for name, one in tree.items())
    if isinstance(tree, float) and func._overloadpacket.__name__.startswith("_foreach_"):
        return float  # such as an optimizer's factors, which differ in each step
    hash(tree)
    return type(tree), tree


def _returned(func: Any, args: Any, kwargs: Any, made: Any) -> Any:
    """Return what an operation returns: the arguments that it has written, and otherwise what was made."""
    returns = func._schema.returns
    if not returns:
        return None
    several = list(made) if isinstance(made, (list, tuple)) and len(returns) > 1 else [made] * len(returns)
    for index, one in enumerate(returns):
        if one.alias_info is not None and one.alias_info.is_write:
            several[index] = next(
                args[place] if place < len(args) else kwargs[argument.name]
                for place, argument in enumerate(func._schema.arguments)
                if argument.alias_info is not None and argument.alias_info.before_set == one.alias_info.before_set
            )
    return several[0] if len(returns) == 1 else tuple(several)


def _place() -> str:
    """Return the file and line of the script that has called torch."""
    frame: Any = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _NO_SCRIPT:
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


_NO_SCRIPT = ("torch", "longhaul_gpu", "longhaul_torch", "contextlib")
