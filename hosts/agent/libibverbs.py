"""Linux's RDMA verbs (libibverbs) for agents: memory, queues and queue pairs of a reliable connection.

libibverbs exports the functions that need no speed, and has those of the data path in a table of its context (struct
ibv_context_ops in infiniband/verbs.h), which is a part of its ABI. Python's package pyverbs was tried: it does not tell
the descriptor of a completion channel, without which an agent cannot wait for a message and a timer at once.
"""

import ctypes
import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from hosts.agent.buffers import filled
from hosts.agent.payload import address_of

MOST_REQUESTS = 16_000
"""Requests that a queue pair may hold; soft-RoCE has room for 16,384."""


class _Gid(ctypes.Structure):
    _fields_ = (("words", ctypes.c_uint64 * 2),)


class _Sge(ctypes.Structure):
    _fields_ = (("addr", ctypes.c_uint64), ("length", ctypes.c_uint32), ("lkey", ctypes.c_uint32))


class _SendRequest(ctypes.Structure):
    _fields_ = (
        ("wr_id", ctypes.c_uint64),
        ("next", ctypes.c_void_p),
        ("sg_list", ctypes.POINTER(_Sge)),
        ("num_sge", ctypes.c_int),
        ("opcode", ctypes.c_int),
        ("send_flags", ctypes.c_uint),
        ("imm_data", ctypes.c_uint32),
        ("unused", ctypes.c_uint8 * 88),  # what other operations than SEND need
    )


class _ReceiveRequest(ctypes.Structure):
    _fields_ = (
        ("wr_id", ctypes.c_uint64),
        ("next", ctypes.c_void_p),
        ("sg_list", ctypes.POINTER(_Sge)),
        ("num_sge", ctypes.c_int),
    )


class _Completion(ctypes.Structure):
    _fields_ = (
        ("wr_id", ctypes.c_uint64),
        ("status", ctypes.c_int),
        ("opcode", ctypes.c_int),
        ("vendor_err", ctypes.c_uint32),
        ("byte_len", ctypes.c_uint32),
        ("unused", ctypes.c_uint8 * 24),
    )


class _Capacities(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_uint32)
        for name in ("max_send_wr", "max_recv_wr", "max_send_sge", "max_recv_sge", "max_inline_data")
    )


class _QueuePairBegin(ctypes.Structure):
    _fields_ = (
        ("qp_context", ctypes.c_void_p),
        ("send_cq", ctypes.c_void_p),
        ("recv_cq", ctypes.c_void_p),
        ("srq", ctypes.c_void_p),
        ("cap", _Capacities),
        ("qp_type", ctypes.c_int),
        ("sq_sig_all", ctypes.c_int),
    )


class _GlobalRoute(ctypes.Structure):
    _fields_ = (
        ("dgid", _Gid),
        ("flow_label", ctypes.c_uint32),
        ("sgid_index", ctypes.c_uint8),
        ("hop_limit", ctypes.c_uint8),
        ("traffic_class", ctypes.c_uint8),
    )


class _Path(ctypes.Structure):
    _fields_ = (
        ("grh", _GlobalRoute),
        ("dlid", ctypes.c_uint16),
        ("sl", ctypes.c_uint8),
        ("src_path_bits", ctypes.c_uint8),
        ("static_rate", ctypes.c_uint8),
        ("is_global", ctypes.c_uint8),
        ("port_num", ctypes.c_uint8),
    )


class _QueuePairState(ctypes.Structure):
    _fields_ = (
        ("qp_state", ctypes.c_int),
        ("cur_qp_state", ctypes.c_int),
        ("path_mtu", ctypes.c_int),
        ("path_mig_state", ctypes.c_int),
        ("qkey", ctypes.c_uint32),
        ("rq_psn", ctypes.c_uint32),
        ("sq_psn", ctypes.c_uint32),
        ("dest_qp_num", ctypes.c_uint32),
        ("qp_access_flags", ctypes.c_uint),
        ("cap", _Capacities),
        ("ah_attr", _Path),
        ("alt_ah_attr", _Path),
        ("pkey_index", ctypes.c_uint16),
        ("alt_pkey_index", ctypes.c_uint16),
        ("en_sqd_async_notify", ctypes.c_uint8),
        ("sq_draining", ctypes.c_uint8),
        ("max_rd_atomic", ctypes.c_uint8),
        ("max_dest_rd_atomic", ctypes.c_uint8),
        ("min_rnr_timer", ctypes.c_uint8),
        ("port_num", ctypes.c_uint8),
        ("timeout", ctypes.c_uint8),
        ("retry_cnt", ctypes.c_uint8),
        ("rnr_retry", ctypes.c_uint8),
        ("alt_port_num", ctypes.c_uint8),
        ("alt_timeout", ctypes.c_uint8),
        ("rate_limit", ctypes.c_uint32),
    )


class _Context(ctypes.Structure):
    _fields_ = (("device", ctypes.c_void_p), ("operations", ctypes.c_void_p * 32))


class _QueuePair(ctypes.Structure):
    _fields_ = (
        ("context", ctypes.c_void_p),
        ("qp_context", ctypes.c_void_p),
        ("pd", ctypes.c_void_p),
        ("send_cq", ctypes.c_void_p),
        ("recv_cq", ctypes.c_void_p),
        ("srq", ctypes.c_void_p),
        ("handle", ctypes.c_uint32),
        ("qp_num", ctypes.c_uint32),
    )


class _Region(ctypes.Structure):
    _fields_ = (
        ("context", ctypes.c_void_p),
        ("pd", ctypes.c_void_p),
        ("addr", ctypes.c_void_p),
        ("length", ctypes.c_size_t),
        ("handle", ctypes.c_uint32),
        ("lkey", ctypes.c_uint32),
    )


class _Channel(ctypes.Structure):
    _fields_ = (("context", ctypes.c_void_p), ("fd", ctypes.c_int))


# Of infiniband/verbs.h.
_POLL_CQ, _REQ_NOTIFY_CQ, _POST_SEND, _POST_RECV = 11, 12, 25, 26  # positions in struct ibv_context_ops
_RELIABLE, _SEND, _SIGNALED, _LOCAL_WRITE, _MTU_4096 = 2, 2, 2, 1, 5
_INIT, _RECEIVES, _SENDS = 1, 2, 3  # states of a queue pair: INIT, RTR, RTS
_OF_INIT = 1 << 0 | 1 << 3 | 1 << 4 | 1 << 5  # the fields that each state wants
_OF_RECEIVES = 1 << 0 | 1 << 7 | 1 << 8 | 1 << 12 | 1 << 15 | 1 << 17 | 1 << 20
_OF_SENDS = 1 << 0 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 13 | 1 << 16
_ALWAYS = 7  # retries after a timeout, and where no memory is posted: without end, as soft-RoCE takes it
_SHORTEST_WAIT = 1  # 0.01 ms until the next try where no memory is posted
_TIMEOUT_UNIT_S, _LONGEST_TIMEOUT = 4.096e-6, 31
_FLUSHED = 5  # a completion's status: ended with its queue pair
_STATUS = {
    _FLUSHED: "its device ended the connection, as it does without memory for a packet",
    12: "its packets were not acknowledged",
    13: "it has no memory for a message",
}
"""Why a request failed, by the status of its completion."""


@dataclass(frozen=True, kw_only=True)
class Peer:
    """The end of a connection, as its other end must know it: the number of its queue pair, and its device's address
    (`gid`, 16 bytes)."""

    number: int
    gid: bytes

    PACKED_BYTES = 20

    def pack(self) -> bytes:
        """Return it as bytes."""
        return self.number.to_bytes(4) + self.gid

    @classmethod
    def unpack(cls, data: bytes) -> "Peer":
        """Return what `pack` has packed; raises ValueError for another length."""
        if len(data) != cls.PACKED_BYTES:
            raise ValueError(f"{len(data)} bytes are not the end of a queue pair")
        return cls(number=int.from_bytes(data[:4]), gid=data[4:])


def timeout_exponent(wait_s: float) -> int:
    """Return the exponent of the shortest timeout, 4.096 us x 2^n, that is at least `wait_s` (InfiniBand Architecture
    Specification 1, 9.7.6.1.3)."""
    return next(n for n in range(1, _LONGEST_TIMEOUT + 1) if n == _LONGEST_TIMEOUT or _TIMEOUT_UNIT_S * 2**n >= wait_s)


class Device:
    """The verbs device of this network namespace, at the IPv4 address `address`; raises OSError without one."""

    def __init__(self, address: str) -> None:
        self._lib = _library()
        count = ctypes.c_int()
        devices = self._lib.ibv_get_device_list(ctypes.byref(count))
        try:
            if not devices or not count.value:
                raise OSError(errno.ENODEV, "there is no verbs device")
            self.context = _made(self._lib.ibv_open_device(devices[0]), "open its verbs device")
        finally:
            if devices:
                self._lib.ibv_free_device_list(devices)
        self._operations = ctypes.cast(self.context, ctypes.POINTER(_Context)).contents.operations
        self.domain = _made(self._lib.ibv_alloc_pd(self.context), "allocate a protection domain")
        wanted = bytes(10) + b"\xff\xff" + bytes(map(int, address.split(".")))
        self.gid_index = next((n for n, gid in self._gids() if gid == wanted), None)
        if self.gid_index is None:
            raise OSError(errno.EADDRNOTAVAIL, f"its verbs device does not have the address {address}")
        self.gid = wanted

    def _gids(self) -> Iterator[tuple[int, bytes]]:
        gid = _Gid()
        for number in range(64):
            if self._lib.ibv_query_gid(self.context, 1, number, ctypes.byref(gid)):
                return
            yield number, bytes(gid)

    def queue(self, room: int, channel: int | None = None) -> int:
        """Return a new completion queue with room for so many completions; raises OSError."""
        return _made(self._lib.ibv_create_cq(self.context, room, None, channel, 0), "create a completion queue")

    def channel(self) -> tuple[int, int]:
        """Return a new completion channel and its descriptor, which does not block; raises OSError."""
        made = _made(self._lib.ibv_create_comp_channel(self.context), "create a completion channel")
        fd = ctypes.cast(made, ctypes.POINTER(_Channel)).contents.fd
        os.set_blocking(fd, False)
        return made, fd

    def memory(self, size_bytes: int) -> "Memory":
        """Return new memory that the device may read and write; raises OSError."""
        view = filled(size_bytes)
        address = address_of(view)
        region = self._lib.ibv_reg_mr(self.domain, address, size_bytes, _LOCAL_WRITE)
        region = _made(region, f"register {size_bytes:,} bytes of memory")
        return Memory(view, address, ctypes.cast(region, ctypes.POINTER(_Region)).contents.lkey, region)

    def free(self, memory: "Memory") -> None:
        """Take memory back from the device, so that it is free once nothing refers to it."""
        self._lib.ibv_dereg_mr(memory.region)

    def free_queue(self, queue: int, channel: int | None = None) -> None:
        """Destroy a completion queue, whose queue pairs have been destroyed, and its channel."""
        self._lib.ibv_destroy_cq(queue)
        if channel is not None:
            self._lib.ibv_destroy_comp_channel(channel)

    def queue_pair(self, *, sending: int, receiving: int, sends: int, receives: int) -> "QueuePair":
        """Return a new queue pair between the completion queues `sending` and `receiving`, with room for so many
        requests; raises OSError."""
        begin = _QueuePairBegin(send_cq=sending, recv_cq=receiving, qp_type=_RELIABLE)
        begin.cap = _Capacities(max_send_wr=sends, max_recv_wr=receives, max_send_sge=1, max_recv_sge=1)
        made = _made(self._lib.ibv_create_qp(self.domain, ctypes.byref(begin)), "create a queue pair")
        return QueuePair(self, made)

    def call(self, position: int, *arguments: Any) -> int:
        """Call a function of the context's table; returns its result."""
        function = ctypes.CFUNCTYPE(ctypes.c_int, *(ctypes.c_void_p for _ in arguments), use_errno=True)
        result: int = function(self._operations[position])(*arguments)
        return result

    def completions(self, queue: int) -> Iterator[int]:
        """Yield the identifiers of the requests that have ended, in order; raises OSError for one that failed."""
        completion = _Completion()
        poll = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)(
            self._operations[_POLL_CQ]
        )
        while poll(queue, 1, ctypes.addressof(completion)) > 0:
            if completion.status:
                why = _STATUS.get(completion.status, f"verbs failed with status {completion.status}")
                raise OSError(errno.EIO, why)
            yield completion.wr_id

    def ask_for_event(self, queue: int) -> None:
        """Have a completion queue make its channel readable with its next completion; raises OSError."""
        if code := self.call(_REQ_NOTIFY_CQ, queue, 0):
            raise OSError(abs(code), f"a verbs event cannot be asked for: {os.strerror(abs(code))}")

    def take_events(self, channel: int, queue: int) -> None:
        """Take all events of a channel, which has this completion queue alone."""
        found, context = ctypes.c_void_p(), ctypes.c_void_p()
        while not self._lib.ibv_get_cq_event(channel, ctypes.byref(found), ctypes.byref(context)):
            self._lib.ibv_ack_cq_events(queue, 1)


@dataclass
class Memory:
    """Memory that a device may use: its bytes, their address, the device's key for them, and their registration."""

    view: memoryview
    address: int
    key: int
    region: int


class QueuePair:
    """A queue pair of a reliable connection; `end` is what its peer must know of it."""

    def __init__(self, device: Device, made: int) -> None:
        self._device, self._made = device, made
        number = ctypes.cast(made, ctypes.POINTER(_QueuePair)).contents.qp_num
        self.end = Peer(number=number, gid=device.gid)
        state = _QueuePairState(qp_state=_INIT, port_num=1)
        self._modify(state, _OF_INIT)

    def connect(self, peer: Peer, *, dscp: int, timeout: int) -> None:
        """Connect it with its peer; `timeout` is the exponent of the timeout (`timeout_exponent`). Raises OSError."""
        state = _QueuePairState(
            qp_state=_RECEIVES, path_mtu=_MTU_4096, dest_qp_num=peer.number, min_rnr_timer=_SHORTEST_WAIT
        )
        route = state.ah_attr.grh
        route.dgid = _Gid.from_buffer_copy(peer.gid)
        route.sgid_index, route.hop_limit, route.traffic_class = self._device.gid_index, 64, dscp << 2
        state.ah_attr.is_global = state.ah_attr.port_num = 1
        self._modify(state, _OF_RECEIVES)
        state = _QueuePairState(qp_state=_SENDS, timeout=timeout, retry_cnt=_ALWAYS, rnr_retry=_ALWAYS)
        self._modify(state, _OF_SENDS)

    def send(self, memory: Memory, first: int, size_bytes: int, *, identifier: int | None) -> None:
        """Send bytes of memory; with an `identifier` the send queue tells when they have arrived. Raises OSError."""
        part = _Sge(addr=memory.address + first, length=size_bytes, lkey=memory.key)
        request = _SendRequest(sg_list=ctypes.pointer(part), num_sge=1, opcode=_SEND)
        if identifier is not None:
            request.wr_id, request.send_flags = identifier, _SIGNALED
        self._post(_POST_SEND, request)

    def receive(self, memory: Memory, first: int, size_bytes: int, *, identifier: int) -> None:
        """Post memory for the message after those that were posted for before; raises OSError."""
        part = _Sge(addr=memory.address + first, length=size_bytes, lkey=memory.key)
        self._post(_POST_RECV, _ReceiveRequest(wr_id=identifier, sg_list=ctypes.pointer(part), num_sge=1))

    def close(self) -> None:
        """Destroy it, so that nothing more is sent."""
        _library().ibv_destroy_qp(self._made)

    def _post(self, position: int, request: ctypes.Structure) -> None:
        bad = ctypes.c_void_p()
        code = self._device.call(position, self._made, ctypes.addressof(request), ctypes.addressof(bad))
        if code:
            raise OSError(abs(code), f"a verbs request was refused: {os.strerror(abs(code))}")

    def _modify(self, state: _QueuePairState, fields: int) -> None:
        code = _library().ibv_modify_qp(self._made, ctypes.byref(state), fields)
        if code:
            raise OSError(code, f"a queue pair cannot be connected: {os.strerror(code)}")


def is_installed() -> bool:
    """Return whether this machine has libibverbs."""
    try:
        _library()
    except OSError:
        return False
    return True


@cache
def _library() -> ctypes.CDLL:
    """Return libibverbs; raises OSError where it is not installed."""
    found = ctypes.CDLL("libibverbs.so.1", use_errno=True)
    for name in ("open_device", "alloc_pd", "reg_mr", "create_cq", "create_qp", "create_comp_channel"):
        getattr(found, f"ibv_{name}").restype = ctypes.c_void_p
    found.ibv_get_device_list.restype = ctypes.POINTER(ctypes.c_void_p)
    pointer, number = ctypes.c_void_p, ctypes.c_int
    found.ibv_free_device_list.argtypes = (ctypes.POINTER(ctypes.c_void_p),)
    found.ibv_open_device.argtypes = found.ibv_alloc_pd.argtypes = found.ibv_create_comp_channel.argtypes = (pointer,)
    found.ibv_reg_mr.argtypes = (pointer, pointer, ctypes.c_size_t, number)
    found.ibv_create_cq.argtypes = (pointer, number, pointer, pointer, number)
    found.ibv_create_qp.argtypes = (pointer, pointer)
    found.ibv_modify_qp.argtypes = (pointer, pointer, number)
    found.ibv_destroy_qp.argtypes = found.ibv_destroy_cq.argtypes = found.ibv_dereg_mr.argtypes = (pointer,)
    found.ibv_destroy_comp_channel.argtypes = (pointer,)
    found.ibv_query_gid.argtypes = (pointer, ctypes.c_uint8, number, pointer)
    found.ibv_get_cq_event.argtypes = (pointer, pointer, pointer)
    found.ibv_ack_cq_events.argtypes = (pointer, ctypes.c_uint)
    return found


def _made(pointer: int | None, what: str) -> int:
    """Return a pointer that libibverbs has made; raises OSError without one."""
    if not pointer:
        code = ctypes.get_errno() or errno.EIO
        raise OSError(code, f"cannot {what}: {os.strerror(code)}")
    return pointer
