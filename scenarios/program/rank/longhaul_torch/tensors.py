"""The bytes of CPU tensors, and what is computed on them while they are reduced: in their own dtype, as NCCL does."""

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.distributed.distributed_c10d import ReduceOp

from . import computing
from .blank import Blank, Buffer

Tensor = Any
"""A torch.Tensor."""


def bytes_of(tensor: Tensor) -> memoryview:
    """Return the bytes of a contiguous tensor, which must outlive them."""
    size = tensor.numel() * tensor.element_size()
    if not size:
        return memoryview(bytearray())  # writable, like the others
    return memoryview((ctypes.c_char * size).from_address(tensor.data_ptr())).cast("B")


def is_plain(tensor: Tensor) -> bool:
    """Return whether a tensor's memory holds its elements in order and nothing else."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def fault(tensor: Tensor) -> str | None:
    """Return why a tensor can be no part of a collective, as a sentence; None if it can."""
    if type(tensor).__name__ == "FakeTensor" or tensor.device.type == "meta":
        return "the backend longhaul got a tensor without data (fake or meta); allowed: tensors with data"
    if tensor.device.type != "cpu":
        return f"the backend longhaul got a tensor on the device {tensor.device}; allowed: cpu"
    if tensor.layout != torch.strided:
        return f"the backend longhaul got a tensor of the layout {tensor.layout}; allowed: torch.strided"
    return None


class Block:
    """The bytes of a tensor for a collective, of which `size_bytes` are sent or received; the rest is padding.

    The tensor's own memory is used if it is plain and has that size, and `in_place`. Otherwise `store` copies the
    result to the tensor. With `load` the block begins with the tensor's contents. That of a fake tensor has none.
    """

    bytes: Buffer

    def __init__(self, tensor: Tensor | None, size_bytes: int, *, load: bool = False, in_place: bool = True) -> None:
        self._tensor = None if tensor is None else tensor.detach()
        self._staged: Tensor = None
        if tensor is not None and computing.is_fake(tensor):
            self._tensor, self.bytes = None, Blank(size_bytes)
            return
        own = 0 if tensor is None else tensor.numel() * tensor.element_size()
        if in_place and self._tensor is not None and own == size_bytes and is_plain(self._tensor):
            self.bytes = bytes_of(self._tensor)
            return
        self._staged = torch.empty(size_bytes, dtype=torch.uint8)
        self.bytes = bytes_of(self._staged)
        if tensor is not None and load and own:
            self._staged[:own].view(tensor.dtype).view(tensor.shape).copy_(self._tensor)
        if load:
            self._staged[own:].zero_()

    def store(self) -> None:
        """Copy the block to its tensor, if it is not the tensor's own memory."""
        if self._tensor is not None:
            self.store_to(self._tensor)

    def store_to(self, tensor: Tensor) -> None:
        """Copy the block to a tensor of the same dtype and number of elements, unless it is that tensor's memory."""
        own = tensor.numel() * tensor.element_size()
        if self._staged is not None and own:
            tensor.detach().copy_(self._staged[:own].view(tensor.dtype).view(tensor.shape))


_OPERATIONS: dict[Any, Callable[[Tensor, Tensor], object]] = {
    ReduceOp.SUM: lambda a, b: a.add_(b),
    ReduceOp.AVG: lambda a, b: a.add_(b),
    ReduceOp.PRODUCT: lambda a, b: a.mul_(b),
    ReduceOp.MIN: lambda a, b: torch.minimum(a, b, out=a),
    ReduceOp.MAX: lambda a, b: torch.maximum(a, b, out=a),
    ReduceOp.BAND: lambda a, b: a.bitwise_and_(b),
    ReduceOp.BOR: lambda a, b: a.bitwise_or_(b),
    ReduceOp.BXOR: lambda a, b: a.bitwise_xor_(b),
}
_OF_BOOL = {  # as NCCL: a sum is an "or"
    ReduceOp.SUM: ReduceOp.BOR,
    ReduceOp.MAX: ReduceOp.BOR,
    ReduceOp.PRODUCT: ReduceOp.BAND,
    ReduceOp.MIN: ReduceOp.BAND,
}


class Reduction:
    """A reduction of tensors of one dtype; raises ValueError with a sentence if there is no such reduction."""

    def __init__(self, op: Any, dtype: Any) -> None:
        self._op, self._dtype, self._factor = getattr(op, "op", op), dtype, None
        name = str(self._op).rpartition(".")[2]
        if self._op == getattr(ReduceOp, "PREMUL_SUM", None):
            self._factor, self._op = op.__getstate__()[1], ReduceOp.SUM
        if dtype == torch.bool:
            self._op = _OF_BOOL.get(self._op, self._op)
        try:
            self._combine = _OPERATIONS[self._op]
            self._combine(torch.zeros(1, dtype=dtype), torch.zeros(1, dtype=dtype))
            if dtype == torch.bool and (self._op == ReduceOp.AVG or self._factor is not None):
                raise TypeError
        except (KeyError, RuntimeError, TypeError):
            raise ValueError(f"the backend longhaul has no {name} of {dtype}") from None

    def before(self, mine: Tensor) -> Tensor:
        """Return what this rank contributes: for PREMUL_SUM a product, and otherwise the tensor itself."""
        if self._factor is None or computing.is_fake(mine):
            return mine
        return (mine.detach() * self._factor).to(self._dtype)

    @property
    def has_factor(self) -> bool:
        """Whether a rank contributes something else than its tensor."""
        return self._factor is not None

    def add(self, into: Buffer, data: Buffer) -> None:
        """Reduce the elements of the second block of bytes into the first."""
        if not isinstance(into, Blank) and not isinstance(data, Blank) and len(into):
            self._combine(torch.frombuffer(into, dtype=self._dtype), torch.frombuffer(data, dtype=self._dtype))

    def after(self, result: Tensor, ranks: int) -> None:
        """Finish a result in place: an average is the sum divided by the number of ranks."""
        if self._op == ReduceOp.AVG and result.numel() and not computing.is_fake(result):
            target = result.detach()
            whole = not (target.is_floating_point() or target.is_complex())
            target.div_(ranks, rounding_mode="trunc") if whole else target.div_(ranks)


def copy(into: Tensor, data: Tensor) -> None:
    """Copy a tensor's elements to another one of any shape, unless they have no values."""
    if not computing.is_fake(into):
        into.detach().copy_(data.detach().reshape(into.shape))


def parts_of(tensor: Tensor, sizes: Sequence[int], ranks: int) -> list[Tensor]:
    """Return the parts of a tensor's first dimension for each rank: of these sizes, or equal ones without sizes.

    Raises ValueError.
    """
    rows = tensor.shape[0] if tensor.dim() else 1
    if not sizes:
        if rows % ranks:
            raise ValueError(f"a tensor of {rows} rows is to be split evenly among {ranks} ranks")
        sizes = [rows // ranks] * ranks
    if len(sizes) != ranks or sum(sizes) != rows:
        raise ValueError(f"the split sizes {list(sizes)} are not those of {rows} rows for {ranks} ranks")
    return list(tensor.detach().split(list(sizes)))
