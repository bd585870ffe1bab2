"""VMs joined in virtual time: several machines, each on a core of its own, with links between them.

They share one virtual clock. Link N joins the network devices `joinN` of two machines; a packet takes the link's delay,
which is at least a nanosecond, and the links carry everything at once. A machine runs ahead of another by up to that
delay, so that both compute at the same time (conservative synchronisation: K. M. Chandy and J. Misra, *Distributed
simulation*, 1979; `23-joined-machines.patch` has the details). What happens does not depend on how fast which machine
runs.
"""

import os
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from scenarios import vm
from scenarios.vm import resources
from scenarios.vm.boot import MACHINE, Member
from scenarios.vm.errors import VMUsageError
from scenarios.vm.machine import Sink
from scenarios.vm.resources import DEFAULT_MEMORY_BYTES
from topologies import units
from topologies.fabric.machines import MAX_MACHINES

MAX_LINKS = 64
_ENDED, _LINE_BYTES = 2**63 - 1, 64  # what the kernel knows an ended machine by, and where: a line of memory for each


class JoinedLink(NamedTuple):
    """A link between two machines, by their numbers, and its one-way delay in ns."""

    one: int
    other: int
    delay_ns: int


def parse_link(text: str) -> JoinedLink:
    """Return the link that a text describes, such as "0-1, 10 ms"; raises ValueError."""
    allowed = 'allowed: two machines and a one-way delay, such as "0-1, 10 ms"'
    ends, _, delay = (part.strip() for part in text.partition(","))
    one, _, other = (end.strip() for end in ends.partition("-"))
    if not (one.isdecimal() and other.isdecimal()) or int(one) == int(other):
        raise ValueError(f"{text!r} does not name two machines; {allowed}")
    if max(int(one), int(other)) >= MAX_MACHINES:
        raise ValueError(f"{text!r} names machine {max(int(one), int(other))}; allowed: 0 to {MAX_MACHINES - 1}")
    try:
        delay_ns = round(units.parse_delay_s(delay) * 1e9)
    except units.UnitError as error:
        raise ValueError(f"{error}; {allowed}") from None
    if not delay_ns:
        raise ValueError(f"{delay!r} is less than 1 ns; allowed: 1 ns or more")
    return JoinedLink(int(one), int(other), delay_ns)


def run(
    commands: Sequence[Sequence[str]],
    links: Sequence[JoinedLink],
    *,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    sinks: Sequence[tuple[Sink, Sink]],
    on_start: Callable[[Callable[[], None]], None] | None = None,
    ends_together: bool = False,
    **options: Any,
) -> tuple[int, ...]:
    """Run a command in each of several joined VMs; return their exit statuses.

    `memory_bytes` is that of one VM, `sinks` has the stdout and stderr of each, and `options` go to `vm.run`. With
    `ends_together`, a status other than 0 ends all. `on_start` receives a function that ends all VMs, which may be
    called from any thread. All VMs end before this function returns. Raises VMUsageError if the links do not join all
    machines, and otherwise the first error of a VM, after the end of the others.
    """
    check(len(commands), links)
    resources.memory_folder(len(commands) * memory_bytes, os.environ)
    statuses, errors = [0] * len(commands), list[BaseException]()
    stops = list[Callable[[], None]]()
    start_ns = time.time_ns()

    over = threading.Event()

    def started(stop: Callable[[], None]) -> None:
        stops.append(stop)
        if over.is_set():
            stop()

    def stop_all() -> None:
        over.set()
        for stop in tuple(stops):
            stop()

    def run_one(number: int, fd: int) -> None:
        stdout, stderr = sinks[number]
        environment = {**(options.get("environment") or os.environ), MACHINE: str(number)}
        member = Member(number, fd, tuple(links), start_ns)
        try:
            statuses[number] = vm.run(
                commands[number],
                memory_bytes=memory_bytes,
                stdout=stdout,
                stderr=stderr,
                on_start=started,
                member=member,
                **options | {"environment": environment},
            )
            if ends_together and statuses[number]:
                stop_all()
            os.pwrite(fd, struct.pack("<Q", _ENDED), number * _LINE_BYTES)  # the others need not wait for it
        except BaseException as error:  # one VM without the others would wait for ever
            errors.append(error)
            stop_all()

    if on_start is not None:
        on_start(stop_all)
    with _shared_memory() as fd:
        threads = [threading.Thread(target=run_one, args=(number, fd)) for number in range(len(commands))]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            stop_all()  # after Ctrl-C; otherwise they have ended
            for thread in threads:
                thread.join()
    if errors and not (ends_together and any(statuses)):
        raise errors[0]
    return tuple(statuses)


def check(machines: int, links: Sequence[JoinedLink]) -> None:
    """Raise VMUsageError unless these links join so many machines, each with every other, directly or over others."""
    if not 2 <= machines <= MAX_MACHINES or len(links) > MAX_LINKS:
        raise VMUsageError(
            f"{machines} machines and {len(links)} links cannot be joined; allowed: 2 to {MAX_MACHINES} machines and"
            f" up to {MAX_LINKS} links"
        )
    joined = {0}
    for _ in range(machines):
        joined |= {end for link in links if {link.one, link.other} & joined for end in (link.one, link.other)}
    if missing := sorted(set(range(machines)) - joined):
        raise VMUsageError(f"no link joins machine {missing[0]} with machine 0; allowed: links that join all machines")


@contextmanager
def _shared_memory() -> Iterator[int]:
    """Yield an unnamed file of memory, which the machines' kernels map."""
    fd = os.memfd_create("longhaul-joined")
    try:
        yield fd
    finally:
        os.close(fd)
