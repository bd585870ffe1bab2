"""Ranks that wait for others, such as servers: when they are useless and can be ended. Pure, but for `HostSockets`."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scenarios.spec.roles import ITSELF, Role

_LISTENS, _OVER = "0A", ("06", "08")  # states of a TCP socket; over are TIME_WAIT and CLOSE_WAIT: the peer has closed
LOOK_NS = 10_000_000
"""After how long a rank that may be useless is looked at again."""
_MOST_NS = 1_000_000_000  # for which a useless rank may keep connections
_EPHEMERAL = 32768  # the first port that the kernel gives to sockets that did not ask for one


@dataclass(frozen=True)
class HostSockets:
    """The sockets of a host: the ports on which it takes what comes, and how many TCP connections it has."""

    open_ports: frozenset[tuple[str, int]]
    connections: int

    @classmethod
    def of(cls, host_pid: int) -> "HostSockets":
        """Read the sockets of the host of this process from /proc."""
        folder = Path("/proc", str(host_pid), "net")
        return cls.read({name: _text(folder / name) for name in ("tcp", "tcp6", "udp", "udp6")})

    @classmethod
    def read(cls, tables: Mapping[str, str]) -> "HostSockets":
        """Return what the texts of /proc/net/tcp, tcp6, udp and udp6 say.

        A UDP socket takes what comes if it is bound to a port that was asked for, and not connected.
        """
        ports, connections = set[tuple[str, int]](), 0
        for table, text in tables.items():
            protocol = table.removesuffix("6")
            for line in text.splitlines()[1:]:
                _, local, remote, state = line.split()[:4]
                port = int(local.rpartition(":")[2], 16)
                if protocol == "udp":
                    if port < _EPHEMERAL and not int(remote.rpartition(":")[2], 16):
                        ports.add((protocol, port))
                elif state == _LISTENS:
                    ports.add((protocol, port))
                elif state not in _OVER:
                    connections += 1
        return cls(frozenset(ports), connections)


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except FileNotFoundError:  # a kernel without IPv6
        return ""


def useless(
    roles: Sequence[Role],
    role_of: Sequence[int],
    running: Collection[int],
    waiting: Collection[int],
    listening: Collection[int],
) -> set[int]:
    """Return the running ranks that only wait for ranks that have ended.

    `role_of` is the index of each rank's role. `running` ranks have started and not ended, `waiting` ones have not
    started, and `listening` ones listen. A role with `until` waits for the role of that name. Without it, ranks that
    listen wait for all that do not, if there are several roles and a rank has ended: launchers listen, too.
    """
    left, found = {*running, *waiting}, set[int]()
    names = {role.name: index for index, role in enumerate(roles)}
    for rank in running:
        until = roles[role_of[rank]].until
        if until not in (None, ITSELF) and not any(role_of[other] == names[until] for other in left):
            found.add(rank)
    servers = {rank for rank in running if roles[role_of[rank]].until is None and rank in listening}
    if len(roles) > 1 and len(left) < len(role_of) and left - found <= servers:
        found |= servers
    return found


@dataclass
class Endings:
    """Decides when useless ranks are ended: once they have had no connection for `LOOK_NS`, or after `_MOST_NS` if
    their role says for what they wait."""

    since_ns: dict[int, int] = field(default_factory=dict)
    quiet_since_ns: dict[int, int] = field(default_factory=dict)

    def due(
        self, ranks: Collection[int], connected: Collection[int], declared: Collection[int], now_ns: int
    ) -> list[int]:
        """Return which of the useless ranks to end now: `connected` are those with connections, and `declared` those
        whose role says for what they wait."""
        ended = []
        for rank in sorted(ranks):
            since_ns = self.since_ns.setdefault(rank, now_ns)
            if rank in connected:
                self.quiet_since_ns.pop(rank, None)
            quiet_ns = now_ns - self.quiet_since_ns.setdefault(rank, now_ns) if rank not in connected else 0
            if quiet_ns >= LOOK_NS or (rank in declared and now_ns - since_ns >= _MOST_NS):
                ended.append(rank)
        return ended
