"""The queue pairs of an agent: each beside a TCP connection, which authenticates its ends and tells them each other.

This is how NCCL sets up its queue pairs, too. Data pass through the queue pairs alone.
"""

import socket
from collections.abc import Sequence

from hosts.agent.libibverbs import Device, Peer
from hosts.agent.verbs import VerbsIncoming, VerbsOutgoing


class QueuePairs:
    """The queue pairs of an agent with the IPv4 address `address`, in the order of its connections.

    All methods raise OSError.
    """

    def __init__(self, address: str) -> None:
        self._device = Device(address)
        self.outgoing: list[VerbsOutgoing] = []
        self.incoming: list[VerbsIncoming] = []

    def offer(self, connection: socket.socket, *, messages: int) -> None:
        """Make the sending end for a connection of so many messages, and tell it the receiver."""
        self.outgoing.append(VerbsOutgoing(self._device, messages=messages))
        connection.sendall(self.outgoing[-1].end.pack())

    def accept(self, connection: socket.socket, sizes_bytes: Sequence[int], *, dscp: int, deadline_s: float) -> None:
        """Make the receiving end for messages of these sizes, connect it with its peer, and tell it the sender."""
        peer = _received(connection)
        made = VerbsIncoming(self._device, connection, sizes_bytes, deadline_s=deadline_s)
        made.connect(peer, dscp=dscp, wait_s=deadline_s)
        self.incoming.append(made)
        connection.sendall(made.end.pack())

    def confirm(self, connections: Sequence[socket.socket], dscps: Sequence[int], waits_s: Sequence[float]) -> None:
        """Connect all sending ends; what is not acknowledged within its `waits_s` is sent again."""
        for connection, made, dscp, wait_s in zip(connections, self.outgoing, dscps, waits_s, strict=True):
            made.connect(_received(connection), dscp=dscp, wait_s=wait_s)

    def touch(self) -> None:
        """Send a short message on every queue pair, whose acknowledgement comes back."""
        for one in self.incoming:
            one.begin_touch()
        for other in self.outgoing:
            other.touch()
        for one in self.incoming:
            one.end_touch()

    def begin(self) -> None:
        """Post memory for the first messages of a collective."""
        for one in self.incoming:
            one.post_first()

    def close(self) -> None:
        """Destroy all queue pairs."""
        for one in self.outgoing:
            one.close()
        for other in self.incoming:
            other.close()
        self.outgoing, self.incoming = [], []


def _received(connection: socket.socket) -> Peer:
    data = connection.recv(Peer.PACKED_BYTES, socket.MSG_WAITALL)
    if len(data) != Peer.PACKED_BYTES:
        raise OSError("a GPU to which it is connected told it no queue pair")
    return Peer.unpack(data)
