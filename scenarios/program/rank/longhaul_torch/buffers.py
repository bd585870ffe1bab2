"""The buffers of each collective, as torch knows it, in the terms of a plan: its slots, and what each block is.

Blocks belong to the places of a plan, and the plan's placement says which rank is at each place.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

from . import computing
from .blank import Buffer
from .errors import GroupError
from .execution import Slots
from .planner import Plan
from .tensors import Block, Reduction, Tensor, copy, is_plain
from .worker import Collective


def _bytes(tensor: Tensor) -> int:
    return int(tensor.numel() * tensor.element_size())


def _unit(tensor: Tensor, *, adds: bool) -> int:
    return math.lcm(tensor.element_size(), 4) if adds else int(tensor.element_size())


def _slots(plan: Plan, blocks: Sequence[Block], filled: Sequence[int]) -> Slots:
    """Return the slots of blocks of equal size; `filled` are the blocks with contents."""
    each, size = _slots_per_block(plan, len(blocks)), plan.slot_bytes
    views = {
        block * each + piece: blocks[block].bytes[piece * size : (piece + 1) * size]
        for block in range(len(blocks))
        for piece in range(each)
    }
    return Slots(views, {block * each + piece for block in filled for piece in range(each)}, size)


def _slots_per_block(plan: Plan, blocks: int) -> int:
    used = plan.slots - plan.scratch
    if used % blocks:
        raise GroupError(f"the run's plan has {used} slots for {blocks} blocks")
    return used // blocks


def _block_bytes(plan: Plan, blocks: int, needed: int) -> int:
    size = _slots_per_block(plan, blocks) * plan.slot_bytes
    if size < needed:
        raise GroupError(f"the run's plan has {size} bytes for {needed}")
    return size


def _check_alike(tensors: Sequence[Tensor], like: Tensor, ranks: int, name: str) -> None:
    """Raise ValueError unless there is a tensor of the same dtype and number of elements for each rank."""
    if len(tensors) != ranks:
        raise ValueError(f"{name} got {len(tensors)} tensors; allowed: one for each of {ranks} ranks")
    for one in tensors:
        if one.dtype != like.dtype or one.numel() != like.numel():
            raise ValueError(
                f"{name} got tensors of {one.numel()} elements of {one.dtype} and of {like.numel()} of {like.dtype}; "
                "allowed: the same number of the same dtype"
            )


# --- whole buffers ----------------------------------------------------------------------------------------------------


class _Parts(Protocol):
    """The buffers of a collective on this rank, as `Collective` uses them."""

    def slots(self, plan: Plan) -> Slots: ...
    def finish(self, plan: Plan) -> None: ...
    def alone(self) -> None: ...


def _of(parts: _Parts, **fields: Any) -> Collective:
    """Return the collective with these buffers, and with its other fields."""
    return Collective(slots=parts.slots, finish=parts.finish, alone=parts.alone, **fields)


class _Whole:
    """A collective whose buffer is one tensor, which is reduced if there is a reduction."""

    def __init__(self, tensor: Tensor, reduction: Reduction | None, *, is_loaded: bool, is_mine: bool) -> None:
        self._tensor, self._reduction = tensor, reduction
        self._is_loaded, self._is_mine = is_loaded, is_mine
        self._block: Block | None = None

    def slots(self, plan: Plan) -> Slots:
        mine = self._tensor
        in_place = self._is_mine
        if self._reduction is not None and self._reduction.has_factor:
            mine = self._reduction.before(mine)
            in_place = False
        self._block = Block(mine, _block_bytes(plan, 1, _bytes(mine)), load=self._is_loaded, in_place=in_place)
        return _slots(plan, [self._block], [0] if self._is_loaded else [])

    def finish(self, plan: Plan) -> None:
        assert self._block is not None
        if self._is_mine:
            self._block.store_to(self._tensor)
            if self._reduction is not None:
                self._reduction.after(self._tensor, len(plan.placement))

    def alone(self) -> None:
        if self._reduction is not None and self._reduction.has_factor:
            copy(self._tensor, self._reduction.before(self._tensor))


def allreduce(tensor: Tensor, op: Any, ranks: int, name: str = "all_reduce") -> Collective:
    """Return the AllReduce of a tensor. Raises ValueError for a reduction that there is not."""
    reduction = Reduction(op, tensor.dtype)
    whole = _Whole(tensor, reduction, is_loaded=True, is_mine=True)
    return _of(
        whole,
        name=name,
        kind="allreduce",
        size_bytes=_bytes(tensor),
        unit_bytes=_unit(tensor, adds=True),
        add=reduction.add,
    )


def broadcast(tensor: Tensor, root: int, rank: int) -> Collective:
    """Return the Broadcast of a tensor."""
    whole = _Whole(tensor, None, is_loaded=rank == root, is_mine=True)
    return _of(
        whole,
        name="broadcast",
        kind="broadcast",
        size_bytes=_bytes(tensor),
        unit_bytes=_unit(tensor, adds=False),
        root=root,
    )


def reduce(tensor: Tensor, op: Any, root: int, rank: int, ranks: int) -> Collective:
    """Return the Reduce of a tensor, which other ranks than the root keep as it is. Errors as `allreduce`."""
    reduction = Reduction(op, tensor.dtype)
    whole = _Whole(tensor, reduction, is_loaded=True, is_mine=rank == root)
    return _of(
        whole,
        name="reduce",
        kind="reduce",
        size_bytes=_bytes(tensor),
        unit_bytes=_unit(tensor, adds=True),
        add=reduction.add,
        root=root,
    )


# --- a block for each rank --------------------------------------------------------------------------------------------


class _Gathered:
    """A collective in which each rank begins with one block; `outputs` are the blocks by rank, or empty."""

    def __init__(self, outputs: Sequence[Tensor], tensor: Tensor, rank: int) -> None:
        self._outputs, self._tensor, self._rank = outputs, tensor, rank
        self._blocks: list[Block] = []

    def slots(self, plan: Plan) -> Slots:
        size = _block_bytes(plan, len(plan.placement), _bytes(self._tensor))
        self.alone()
        self._blocks = []
        for rank in plan.placement:
            if rank == self._rank:
                own = self._outputs[rank] if self._outputs else self._tensor
                self._blocks.append(Block(own, size, load=True))
            else:
                self._blocks.append(Block(self._outputs[rank] if self._outputs else None, size))
        return _slots(plan, self._blocks, [plan.placement.index(self._rank)])

    def finish(self, plan: Plan) -> None:
        for rank, block in zip(plan.placement, self._blocks, strict=True):
            if rank != self._rank:
                block.store()

    def alone(self) -> None:
        if self._outputs:
            copy(self._outputs[self._rank], self._tensor)


def allgather(outputs: Sequence[Tensor], tensor: Tensor, rank: int, ranks: int) -> Collective:
    """Return the AllGather of a tensor: outputs[r] is rank r's. Raises ValueError for tensors that differ."""
    _check_alike(outputs, tensor, ranks, "all_gather")
    gathered = _Gathered(outputs, tensor, rank)
    return _of(
        gathered,
        name="all_gather",
        kind="allgather",
        size_bytes=_bytes(tensor) * ranks,
        unit_bytes=_unit(tensor, adds=False),
    )


def allgather_single(output: Tensor, tensor: Tensor, rank: int, ranks: int) -> Collective:
    """Return the AllGather into one tensor, which holds the ranks' one after the other. Errors as `allgather`."""
    flat, store = _flat(output, is_output=True)
    if output.numel() != ranks * tensor.numel():
        raise ValueError(
            f"all_gather_into_tensor got an output of {output.numel()} elements; allowed: {ranks} times the "
            f"{tensor.numel()} of the input"
        )
    parts = list(flat.split(tensor.numel())) if tensor.numel() else [flat] * ranks
    made = allgather(parts, tensor, rank, ranks)
    return _storing(made, "all_gather_into_tensor", store)


def gather(outputs: Sequence[Tensor], tensor: Tensor, root: int, rank: int, ranks: int) -> Collective:
    """Return the Gather of a tensor; `outputs` are empty except on the root. Errors as `allgather`."""
    if rank == root:
        _check_alike(outputs, tensor, ranks, "gather")
    gathered = _Gathered(outputs, tensor, rank)
    return _of(
        gathered,
        name="gather",
        kind="gather",
        size_bytes=_bytes(tensor) * ranks,
        unit_bytes=_unit(tensor, adds=False),
        root=root,
    )


class _Scattered:
    """A Scatter: each rank ends with one block of the root's."""

    def __init__(self, output: Tensor, inputs: Sequence[Tensor], rank: int) -> None:
        self._output, self._inputs, self._rank = output, inputs, rank
        self._blocks: list[Block] = []

    def slots(self, plan: Plan) -> Slots:
        size, everyone = _block_bytes(plan, len(plan.placement), _bytes(self._output)), range(len(plan.placement))
        if self._inputs:
            self._blocks = [Block(self._inputs[rank], size, load=True) for rank in plan.placement]
        else:
            self._blocks = [Block(self._output if rank == self._rank else None, size) for rank in plan.placement]
        return _slots(plan, self._blocks, list(everyone) if self._inputs else [])

    def finish(self, plan: Plan) -> None:
        if self._inputs:
            self.alone()
        else:
            self._blocks[plan.placement.index(self._rank)].store()

    def alone(self) -> None:
        if self._inputs:
            copy(self._output, self._inputs[self._rank])


def scatter(output: Tensor, inputs: Sequence[Tensor], root: int, rank: int, ranks: int) -> Collective:
    """Return the Scatter of the root's tensors; `inputs` are empty on other ranks. Errors as `allgather`."""
    if rank == root:
        _check_alike(inputs, output, ranks, "scatter")
    scattered = _Scattered(output, inputs, rank)
    return _of(
        scattered,
        name="scatter",
        kind="scatter",
        size_bytes=_bytes(output) * ranks,
        unit_bytes=_unit(output, adds=False),
        root=root,
    )


class _ReduceScattered:
    """A ReduceScatter: each rank ends with the reduction of its block; the inputs keep their contents."""

    def __init__(self, output: Tensor, inputs: Sequence[Tensor], reduction: Reduction, rank: int) -> None:
        self._output, self._inputs, self._reduction, self._rank = output, inputs, reduction, rank
        self._blocks: list[Block] = []

    def slots(self, plan: Plan) -> Slots:
        size = _block_bytes(plan, len(plan.placement), _bytes(self._output))
        contributed = [self._reduction.before(self._inputs[rank]) for rank in plan.placement]
        self._blocks = [Block(one, size, load=True, in_place=False) for one in contributed]
        return _slots(plan, self._blocks, range(len(plan.placement)))

    def finish(self, plan: Plan) -> None:
        self._blocks[plan.placement.index(self._rank)].store_to(self._output)
        self._reduction.after(self._output, len(plan.placement))

    def alone(self) -> None:
        copy(self._output, self._reduction.before(self._inputs[self._rank]))


def reduce_scatter(output: Tensor, inputs: Sequence[Tensor], op: Any, rank: int, ranks: int) -> Collective:
    """Return the ReduceScatter of a tensor for each rank. Errors as `allgather` and `allreduce`."""
    _check_alike(inputs, output, ranks, "reduce_scatter")
    reduction = Reduction(op, output.dtype)
    scattered = _ReduceScattered(output, inputs, reduction, rank)
    return _of(
        scattered,
        name="reduce_scatter",
        kind="reducescatter",
        size_bytes=_bytes(output) * ranks,
        unit_bytes=_unit(output, adds=True),
        add=reduction.add,
    )


def reduce_scatter_single(output: Tensor, tensor: Tensor, op: Any, rank: int, ranks: int) -> Collective:
    """Return the ReduceScatter of one tensor, which holds the ranks' blocks one after the other. Errors as above."""
    if tensor.numel() != ranks * output.numel():
        raise ValueError(
            f"reduce_scatter_tensor got an input of {tensor.numel()} elements; allowed: {ranks} times the "
            f"{output.numel()} of the output"
        )
    flat, _ = _flat(tensor, is_output=False)
    parts = list(flat.split(output.numel())) if output.numel() else [flat] * ranks
    return _storing(reduce_scatter(output, parts, op, rank, ranks), "reduce_scatter_tensor", None)


# --- a block for each pair of ranks -----------------------------------------------------------------------------------


class _Exchanged:
    """An AllToAll. Parts may differ in size, so that each message has the elements that there are."""

    def __init__(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], rank: int) -> None:
        self._outputs, self._inputs, self._rank = outputs, inputs, rank
        self._received: list[Block] = []
        self._keeps: list[Block] = []

    def slots(self, plan: Plan) -> Slots:
        ranks = len(plan.placement)
        each = _slots_per_block(plan, 2 * ranks)
        sent = {slot for _, _, messages in plan.sends for message in messages for slot in message.slots}
        come = {slot for _, _, messages in plan.receives for message in messages for slot in message.slots}
        if any(slot >= ranks * each for slot in sent) or any(slot < ranks * each for slot in come):
            raise GroupError("the run's plan passes parts of an alltoall on; allowed: plans that send each part once")
        self._keeps = [Block(self._inputs[rank], _bytes(self._inputs[rank]), load=True) for rank in plan.placement]
        self._received = [Block(self._outputs[rank], _bytes(self._outputs[rank])) for rank in plan.placement]
        views: dict[int, Buffer] = {}
        for number, block in enumerate((*self._keeps, *self._received)):
            tensor = self._inputs[0]
            unit = int(tensor.element_size())
            count = len(block.bytes) // unit
            for piece in range(each):
                begin, end = (unit * (count * at // each) for at in (piece, piece + 1))
                views[number * each + piece] = block.bytes[begin:end]
        self.alone()
        return Slots(views, set(range(ranks * each)), plan.slot_bytes)

    def finish(self, plan: Plan) -> None:
        for rank, block in zip(plan.placement, self._received, strict=True):
            if rank != self._rank:
                block.store()
        self._keeps = []

    def alone(self) -> None:
        copy(self._outputs[self._rank], self._inputs[self._rank])


def alltoall(outputs: Sequence[Tensor], inputs: Sequence[Tensor], rank: int, ranks: int) -> Collective:
    """Return the AllToAll of parts for each rank. Raises ValueError for parts that do not fit."""
    if len(outputs) != ranks or len(inputs) != ranks:
        raise ValueError(
            f"all_to_all got {len(inputs)} inputs and {len(outputs)} outputs; allowed: one for each of {ranks} ranks"
        )
    kinds = {one.dtype for one in (*outputs, *inputs)}
    if len(kinds) != 1:
        raise ValueError(f"all_to_all got tensors of {' and '.join(sorted(map(str, kinds)))}; allowed: one dtype")
    if outputs[rank].numel() != inputs[rank].numel():
        raise ValueError(
            f"all_to_all got a part of {inputs[rank].numel()} elements of a rank for itself, and room for "
            f"{outputs[rank].numel()}; allowed: the same number"
        )
    exchanged = _Exchanged(outputs, inputs, rank)
    unit = int(inputs[0].element_size())
    elements = -(-sum(one.numel() for one in inputs) // ranks) * ranks
    return _of(
        exchanged,
        name="all_to_all",
        kind="alltoall",
        size_bytes=max(elements, ranks) * unit,
        unit_bytes=unit,
    )


def _flat(tensor: Tensor, *, is_output: bool) -> tuple[Tensor, Any]:
    """Return a tensor's elements in one dimension, and what copies them back if they are a copy."""
    own = tensor.detach()
    if is_plain(own):
        return own.view(-1), None
    if computing.is_fake(own):
        flat = own.new_empty(own.numel())
        computing.make_alike([own, flat])
        return flat, None
    other = own.new_empty(own.shape) if is_output else own.resolve_conj().resolve_neg().contiguous()
    return other.view(-1), (lambda: own.copy_(other)) if is_output else None


def _storing(made: Collective, name: str, store: Any) -> Collective:
    """Return the same collective under another name, which copies its result with `store` at its end."""

    def finish(plan: Plan) -> None:
        made.finish(plan)
        if store is not None:
            store()

    def alone() -> None:
        made.alone()
        if store is not None:
            store()

    return replace(made, name=name, finish=finish, alone=alone)
