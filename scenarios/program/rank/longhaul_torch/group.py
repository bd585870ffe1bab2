"""The process group that torch gets for the backend ``longhaul``: what torch asks of a group, in its own terms."""

import atexit
import functools
import json
import os
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import _disable_current_modes

from . import buffers, computing, wire
from .connections import Connections, Listener, Peer
from .errors import GroupError, ranks_text
from .fate import Fate
from .messages import Done, Messages
from .planner import Planner
from .tensors import Block, Tensor, fault, parts_of
from .waking import Wake
from .worker import Collective, Worker
from .works import Work, Works

SOCKET = "LONGHAUL_COLLECTIVES"
ADDRESS = "LONGHAUL_ADDRESS"
_BARRIER_TAG = -(1 << 40)

_Method = TypeVar("_Method", bound=Callable[..., Any])


def _unseen(method: _Method) -> _Method:
    """Have a method run without the modes of the script's thread, which would count its operations or fake them."""

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        with _disable_current_modes():
            return method(*args, **kwargs)

    return call  # type: ignore[return-value]


class _Door:
    """The process's listener, which exists while groups do."""

    def __init__(self) -> None:
        self._lock, self._users = threading.Lock(), 0
        self._listener: Listener | None = None

    def enter(self) -> Listener:
        with self._lock:
            if self._listener is None:
                self._listener = Listener(os.environ.get(ADDRESS, "127.0.0.1"))
            self._users += 1
            return self._listener

    def leave(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0 and self._listener is not None:
                self._listener.close()
                self._listener = None


_DOOR = _Door()


class _Parts:
    """The threads and connections of a group on this rank; `close` may be called again."""

    def __init__(self, *, name: str, rank: int, ranks: list[int], store: Any, timeout: timedelta, path: str) -> None:
        self._lock, self._is_closed, self._process = threading.Lock(), False, os.getpid()
        self.wakes = [Wake(), Wake()]
        self._timeout_s = timeout.total_seconds()
        self.planner: Planner | None = None
        if len(ranks) > 1:
            self.planner = Planner(path, name, self.wakes[0])
        listener = _DOOR.enter()
        token = secrets.token_bytes(wire.TOKEN_BYTES)
        self.connections = Connections(rank=rank, ranks=ranks, listener=listener, token=token)
        try:
            self._meet(name, rank, ranks, store, [*listener.address, token.hex()])
        except BaseException:
            self.connections.close()
            _DOOR.leave()
            if self.planner is not None:
                self.planner.close()
            raise
        self.connections.wakes = self.wakes

        def publish(why: str) -> str:
            first: bytes = store.compare_set("failure", "", why)
            return first.decode()

        self.fate = Fate(ranks[rank], self.connections, publish)
        self.worker = Worker(
            name=name,
            rank=ranks[rank],
            connections=self.connections,
            planner=self.planner,
            fate=self.fate,
            wake=self.wakes[0],
        )
        self.messages = Messages(
            name=name, rank=ranks[rank], connections=self.connections, fate=self.fate, wake=self.wakes[1]
        )

    def _meet(self, name: str, rank: int, ranks: list[int], store: Any, mine: list[object]) -> None:
        """Tell the run of the group, exchange addresses, and connect all pairs if the run wants it."""
        if self.planner is None:
            return
        store.set(f"peer/{rank}", json.dumps(mine))
        keys = [f"peer/{one}" for one in range(len(ranks))]
        found = store.multi_get(keys) if store.has_extended_api() else [store.get(key) for key in keys]
        for host, port, token in map(json.loads, found):
            self.connections.peers.append(Peer(host, port, bytes.fromhex(token)))
        made = self.connections.peers[0].token.hex()
        if self.planner.group(ranks, made=made, timeout_s=self._timeout_s):
            self.connections.connect_all(self._timeout_s)

    def close(self, why: str = "the group was destroyed") -> None:
        """Stop the threads and close the connections; what is under way fails."""
        with self._lock:
            if self._is_closed or os.getpid() != self._process:  # a forked process has no part in it
                return
            self._is_closed = True
        for wake in self.wakes:
            wake.is_over = True
            wake.set()
        self.worker.join()
        self.messages.join()
        self.fate.end(why)
        self.connections.close()
        if self.planner is not None:
            self.planner.close()
        _DOOR.leave()
        for wake in self.wakes:
            wake.close()


_GROUPS: "weakref.WeakSet[_Parts]" = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Stop all threads while Python still runs: torch's objects may not be used afterwards."""
    for parts in list(_GROUPS):
        parts.close("this rank has ended")


class LonghaulGroup(dist.ProcessGroup):
    """A group of `longhaul` on this rank, made of torch's `options` for a backend."""

    def __init__(self, options: Any, path: str) -> None:
        super().__init__(options.group_rank, options.group_size)
        self._rank, self._size, self._store = options.group_rank, options.group_size, options.store
        self._name, self._desc, self._timeout = str(options.group_id), "undefined", options.timeout
        self._ranks = list(options.global_ranks_in_group) or list(range(self._size))
        self._coalesced: list[Work] | None = None
        self._counts = dict[tuple[str, tuple[int, ...]], int]()  # of messages, by kind and ends
        self._bound: Any = None
        self._parts = _Parts(
            name=self._name, rank=self._rank, ranks=self._ranks, store=self._store, timeout=self._timeout, path=path
        )
        _GROUPS.add(self._parts)
        weakref.finalize(self, self._parts.close).atexit = False

    # --- what torch asks about a group -------------------------------------------------------------------------------

    def getBackendName(self) -> str:
        """Return the backend's name."""
        return "longhaul"

    name = _get_backend_name = getBackendName

    def getGroupName(self) -> str:
        """Return the group's name."""
        return self._name

    group_name = property(getGroupName)

    def _set_group_name(self, name: str) -> None:
        self._name = name

    setGroupName = _set_group_name

    def getGroupDesc(self) -> str:
        """Return the group's description."""
        return self._desc

    group_desc = property(getGroupDesc)

    def _set_group_desc(self, desc: str) -> None:
        self._desc = desc

    setGroupDesc = _set_group_desc

    @property
    def _device_types(self) -> list[Any]:
        return [torch.device("cpu")]

    @property
    def bound_device_id(self) -> Any:
        """The device that torch binds to the group."""
        return self._bound

    @bound_device_id.setter
    def bound_device_id(self, device: Any) -> None:
        self._bound = device

    @property
    def supports_splitting(self) -> bool:
        """Whether torch may call the backend's own split: it has none, and new groups serve as well."""
        return False

    @property
    def supports_coalescing(self) -> bool:
        """Whether point-to-point messages are to be issued between `_start_coalescing` and `_end_coalescing`."""
        return False

    def _get_backend(self, device: Any) -> "LonghaulGroup":
        return self

    def get_group_store(self) -> Any:
        """Return the store of the group."""
        return self._store

    def rank(self) -> int:
        """Return this rank in the group."""
        return int(self._rank)

    def size(self) -> int:
        """Return the number of ranks."""
        return int(self._size)

    def getRank(self) -> int:
        """Return this rank in the group."""
        return int(self._rank)

    def getSize(self) -> int:
        """Return the number of ranks."""
        return int(self._size)

    def set_timeout(self, timeout: timedelta) -> None:
        """Have all work from now on take this time at most."""
        self._timeout = timeout

    _set_default_timeout = set_timeout

    def _has_hooks(self) -> bool:
        return False

    def _set_sequence_number_for_group(self) -> None:
        pass

    def shutdown(self) -> None:
        """End the group on this rank; work under way fails."""
        self._parts.close()

    def abort(self) -> None:
        """End the group on this rank, so that the others' work fails at once."""
        self._parts.fate.fail(GroupError("the group was aborted"), "the group")
        self._parts.close("the group was aborted")

    # --- issuing -----------------------------------------------------------------------------------------------------

    def _seconds(self, opts: Any) -> float:
        given = opts if isinstance(opts, timedelta) else getattr(opts, "timeout", None)
        chosen = given if isinstance(given, timedelta) and given > timedelta(0) else self._timeout
        return float(chosen.total_seconds())

    def _issue(self, name: str, outputs: Sequence[Any], collectives: Sequence[Collective], opts: Any) -> Work:
        work = Work(outputs, self._ranks[self._rank], f'{name} of the group "{self._name}"')
        if collectives:
            self._parts.worker.issue(collectives, work, self._seconds(opts))
        else:
            work.finish()
        return self._kept(work)

    def _kept(self, work: Work) -> Work:
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def _start_coalescing(self, device: Any = None) -> None:
        self._coalesced = []

    def _end_coalescing(self, device: Any = None) -> Work:
        works, self._coalesced = self._coalesced or [], None
        return Works(works, self._ranks[self._rank])

    # --- collectives -------------------------------------------------------------------------------------------------

    @_unseen
    def allreduce(self, tensors: Any, opts: Any = None, timeout: Any = None) -> Work:
        """Reduce tensors in place, on all ranks."""
        tensors, op = _listed(tensors), _op_of(opts)
        made = [buffers.allreduce(_checked(one), op, self._size) for one in tensors]
        return self._issue("all_reduce", tensors, made, timeout or opts)

    allreduce_coalesced = allreduce

    @_unseen
    def broadcast(self, tensors: Any, opts: Any = None, timeout: Any = None) -> Work:
        """Copy the root's tensors to all ranks."""
        tensors, root = _listed(tensors), _root_of(opts)
        made = [buffers.broadcast(_checked(one), root, self._rank) for one in tensors]
        return self._issue("broadcast", tensors, made, timeout or opts)

    @_unseen
    def reduce(self, tensors: Any, opts: Any = None, op: Any = None, timeout: Any = None) -> Work:
        """Reduce tensors on the root."""
        tensors, root, op = _listed(tensors), _root_of(opts), op or _op_of(opts)
        made = [buffers.reduce(_checked(one), op, root, self._rank, self._size) for one in tensors]
        return self._issue("reduce", tensors, made, timeout or opts)

    @_unseen
    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """Gather each rank's tensor on all ranks: outputs[i][r] is rank r's inputs[i]."""
        inputs = _listed(inputs)
        outputs = [outputs] if outputs and not isinstance(outputs[0], (list, tuple)) else outputs
        made = [self._allgather(list(out), one) for out, one in zip(outputs, inputs, strict=True)]
        return self._issue("all_gather", outputs, made, opts)

    def _allgather(self, outputs: list[Tensor], tensor: Tensor) -> Collective:
        outputs, (tensor,) = _all_alike(outputs, [tensor])
        return buffers.allgather(outputs, tensor, self._rank, self._size)

    @_unseen
    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """Gather lists of tensors: outputs[r][i] is rank r's inputs[i]."""
        made = [self._allgather([of_rank[i] for of_rank in outputs], one) for i, one in enumerate(inputs)]
        return self._issue("all_gather_coalesced", outputs, made, opts)

    @_unseen
    def _allgather_base(self, output: Any, tensor: Any, opts: Any = None, timeout: Any = None) -> Work:
        made = [buffers.allgather_single(*_alike(output, tensor), self._rank, self._size)]
        return self._issue("all_gather_into_tensor", [output], made, timeout or opts)

    all_gather_single = _allgather_base

    @_unseen
    def allgather_into_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """Gather several tensors, each into one."""
        pairs = list(zip(outputs, inputs, strict=True))
        made = [buffers.allgather_single(*_alike(a, b), self._rank, self._size) for a, b in pairs]
        return self._issue("all_gather_into_tensor", outputs, made, opts)

    all_gather_single_coalesced = allgather_into_tensor_coalesced

    @_unseen
    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> Work:
        """Reduce and scatter lists of tensors: outputs[i] is the reduction of inputs[i][this rank]."""
        outputs = _listed(outputs)
        inputs = [inputs] if inputs and not isinstance(inputs[0], (list, tuple)) else inputs
        made = [self._reduce_scatter(a, list(b), opts) for a, b in zip(outputs, inputs, strict=True)]
        return self._issue("reduce_scatter", outputs, made, timeout or opts)

    def _reduce_scatter(self, output: Tensor, inputs: list[Tensor], opts: Any) -> Collective:
        (output,), inputs = _all_alike([output], inputs)
        return buffers.reduce_scatter(output, inputs, _op_of(opts), self._rank, self._size)

    @_unseen
    def _reduce_scatter_base(self, output: Any, tensor: Any, opts: Any = None, timeout: Any = None) -> Work:
        made = [buffers.reduce_scatter_single(*_alike(output, tensor), _op_of(opts), self._rank, self._size)]
        return self._issue("reduce_scatter_tensor", [output], made, timeout or opts)

    reduce_scatter_single = _reduce_scatter_base

    @_unseen
    def reduce_scatter_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """Reduce and scatter several tensors, each into one."""
        op = _op_of(opts)
        made = [
            buffers.reduce_scatter_single(*_alike(a, b), op, self._rank, self._size)
            for a, b in zip(outputs, inputs, strict=True)
        ]
        return self._issue("reduce_scatter_tensor", outputs, made, opts)

    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced

    @_unseen
    def alltoall_base(
        self, output: Any, tensor: Any, output_sizes: Any = None, input_sizes: Any = None, opts: Any = None
    ) -> Work:
        """Send each rank its part of a tensor; sizes are in rows."""
        output, tensor = _alike(output, tensor)
        outputs = parts_of(output, output_sizes or (), self._size)
        inputs = parts_of(tensor, input_sizes or (), self._size)
        made = [buffers.alltoall(outputs, inputs, self._rank, self._size)]
        return self._issue("all_to_all_single", [output], made, opts)

    all_to_all_single = alltoall_base

    @_unseen
    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """Send each rank its tensor of a list."""
        made = [buffers.alltoall(*_all_alike(outputs, inputs), self._rank, self._size)]
        return self._issue("all_to_all", outputs, made, opts)

    @_unseen
    def gather(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> Work:
        """Gather each rank's tensor on the root."""
        (tensor,), root = _listed(inputs), _root_of(opts)
        outputs = list(outputs[0]) if outputs and isinstance(outputs[0], (list, tuple)) else list(outputs or ())
        into, (tensor,) = _all_alike(outputs if self._rank == root else [], [tensor])
        made = [buffers.gather(into, tensor, root, self._rank, self._size)]
        return self._issue("gather", [outputs], made, timeout or opts)

    @_unseen
    def scatter(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> Work:
        """Send each rank its tensor of the root's list."""
        (output,), root = _listed(outputs), _root_of(opts)
        inputs = list(inputs[0]) if inputs and isinstance(inputs[0], (list, tuple)) else list(inputs or ())
        (output,), given = _all_alike([output], inputs if self._rank == root else [])
        made = [buffers.scatter(output, given, root, self._rank, self._size)]
        return self._issue("scatter", [output], made, timeout or opts)

    @_unseen
    def barrier(self, opts: Any = None, timeout: Any = None) -> Work:
        """Wait for all ranks: a reduction of one element."""
        made = buffers.allreduce(torch.zeros(1), dist.ReduceOp.SUM, self._size, name="barrier")
        work = self._issue("barrier", [], [made], timeout or opts)
        work.blocks_host = True
        return work

    @_unseen
    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """Wait for all ranks; the group's first rank names the first that does not come in time, or all of them.

        Raises DistBackendError.
        """
        seconds = timedelta(seconds=self._seconds(timeout))
        token = torch.zeros(1, dtype=torch.uint8)
        if self._rank:
            self.send([token], 0, _BARRIER_TAG).wait(seconds)
            self.recv([token], 0, _BARRIER_TAG).ended()
            return
        works = {rank: self.recv([token.clone()], rank, _BARRIER_TAG) for rank in range(1, self._size)}
        missing: list[int] = []
        for rank, work in works.items():
            try:
                work.wait(seconds if not missing else timedelta(microseconds=1))
            except dist.DistBackendError:
                missing.append(self._ranks[rank])
                if not wait_all_ranks:
                    break
        if missing:
            raise dist.DistBackendError(
                f'monitored_barrier of the group "{self._name}" did not end within {seconds.total_seconds():g} s: '
                f"nothing came from {ranks_text(missing)}"
            )
        for rank in works:
            self.send([token], rank, _BARRIER_TAG).ended()

    # --- messages ----------------------------------------------------------------------------------------------------

    @_unseen
    def send(self, tensors: Any, rank: int, tag: int = 0) -> Work:
        """Send a tensor to a rank of the group."""
        (tensor,) = _listed(tensors)
        self._check_peer(rank, "send to")
        size = tensor.numel() * tensor.element_size()
        computing.sleep_until(computing.ready_ns())  # before the block is loaded
        block = Block(_checked(tensor), size, load=True)
        work = Work([], self._ranks[self._rank], f'send to rank {self._ranks[rank]} in the group "{self._name}"')
        work.keeps = (tensor, block)
        done = self._recorded(work, "send", (self._rank, rank), size)
        self._parts.messages.send(rank, tag, block.bytes, done, self._timeout.total_seconds())
        return self._kept(work)

    @_unseen
    def recv(self, tensors: Any, rank: int, tag: int = 0) -> Work:
        """Receive a tensor from a rank of the group."""
        self._check_peer(rank, "receive from")
        return self._receive(tensors, rank, tag)

    @_unseen
    def recv_anysource(self, tensors: Any, tag: int = 0) -> Work:
        """Receive a tensor from any rank of the group; the work knows from which (`source_rank`)."""
        return self._receive(tensors, None, tag)

    def _receive(self, tensors: Any, rank: int | None, tag: int) -> Work:
        (tensor,) = _listed(tensors)
        block = Block(_checked(tensor), tensor.numel() * tensor.element_size())
        source = "any rank" if rank is None else f"rank {self._ranks[rank]}"
        work = Work([tensor], self._ranks[self._rank], f'recv from {source} in the group "{self._name}"')
        work.keeps = (tensor, block)
        if rank is not None:
            missing = [self._ranks[rank]]
            work.waits_for = lambda: missing
        ends = (self._rank,) if rank is None else (rank, self._rank)
        finish = self._recorded(work, "recv", ends, len(block.bytes))

        def done(sentence: str | None, sender: int) -> None:
            if sentence is None:
                block.store()
            finish(sentence, sender)

        self._parts.messages.receive(rank, tag, block.bytes, done, self._timeout.total_seconds())
        return self._kept(work)

    def _recorded(self, work: Work, kind: str, ends: tuple[int, ...], size_bytes: int) -> Done:
        """Note that a message between these ranks of the group begins now; return what is called at its end."""
        number = self._counts[kind, ends] = self._counts.get((kind, ends), -1) + 1
        now_ns = time.monotonic_ns()
        record = computing.begun(
            self._name,
            [self._ranks[end] for end in ends],
            number=number,
            kind=kind,
            size_bytes=size_bytes,
            asked_ns=now_ns,
            begun_ns=now_ns,
            after=computing.awaited()[1],
        )

        def done(sentence: str | None, other: int) -> None:
            if record is not None:
                computing.ended(record, time.monotonic_ns())
                work.records.append(record.id)
            work.finish(sentence, other)

        return done

    def _check_peer(self, rank: int, verb: str) -> None:
        if not 0 <= rank < self._size or rank == self._rank:
            raise ValueError(
                f'rank {self._rank} of the group "{self._name}" cannot {verb} rank {rank}; allowed: the other ranks of '
                f"0 to {self._size - 1}"
            )


def _listed(tensors: Any) -> list[Tensor]:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def _checked(tensor: Tensor) -> Tensor:
    if (sentence := fault(tensor)) is not None:
        raise ValueError(sentence)
    return tensor


def _alike(output: Tensor, tensor: Tensor) -> tuple[Tensor, Tensor]:
    computing.make_alike((_checked(output), _checked(tensor)))
    return output, tensor


def _all_alike(outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    computing.make_alike(map(_checked, (*outputs, *inputs)))
    return list(outputs), list(inputs)


def _op_of(opts: Any) -> Any:
    if isinstance(opts, (dist.ReduceOp, dist.ReduceOp.RedOpType)):
        return opts
    return getattr(opts, "reduceOp", dist.ReduceOp.SUM)


def _root_of(opts: Any) -> int:
    return opts if isinstance(opts, int) else int(getattr(opts, "rootRank", 0))


def create(options: Any, backend_options: Any = None) -> LonghaulGroup:
    """Return the group that torch asks for. Raises DistBackendError outside of a run."""
    path = os.environ.get(SOCKET)
    if path is None:
        raise dist.DistBackendError(
            f"the backend longhaul exists in a program that `run.py --exec` starts: {SOCKET} is not set here"
        )
    try:
        return LonghaulGroup(options, path)
    except GroupError as error:
        raise dist.DistBackendError(f'the group "{options.group_id}" could not be made: {error}') from None
