"""A run's end of the ranks' socket for collectives: plans with random algorithms, placements and pieces, seeded."""

import json
import random
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hosts.collectives.kinds import ALGORITHMS, ROOTED, workload
from hosts.collectives.rank_programs import programs


def plan(kind: str, *, size_bytes: int, unit_bytes: int, root: int, ranks: int, draw: random.Random) -> dict[str, Any]:
    """Return a random plan: its id, its content without a program, and the program of each rank."""
    algorithm = draw.choice(ALGORITHMS[kind])
    pieces, channels = draw.randint(1, 3), draw.randint(1, 2) if algorithm == "ring" else 1
    cut = draw.randint(1, ranks - 1)
    sites = (ranks,) if draw.random() < 0.3 else (cut, ranks - cut)
    made = workload(kind, algorithm, sites=sites, size_bytes=size_bytes, channels=channels, pieces=pieces)
    made = replace(made, slot_bytes=max(1, -(-made.slot_bytes // unit_bytes)) * unit_bytes)
    placement = draw.sample(range(ranks), ranks)
    if kind in ROOTED:
        placement.remove(root)
        placement.insert(0, root)
    content = {
        "kind": kind,
        "algorithm": algorithm,
        "pieces": pieces,
        "places": ranks,
        "slots": made.schedule.slots,
        "slot_bytes": made.slot_bytes,
        "placement": placement,
    }
    key = json.dumps([content, sites, channels])
    return {"id": key, "content": content, "programs": [_stripped(one.as_json()) for one in programs(made, placement)]}


def _stripped(program: dict[str, Any]) -> dict[str, Any]:
    """Return a program without what verifies it, and as JSON gives it."""
    for name in ("uses", "own", "multiplier", "buffers"):
        del program[name]
    for name in ("sends", "receives"):
        for _, _, messages in program[name]:
            for message in messages:
                for key in ("terms", "uses", "window", "size_bytes"):
                    message.pop(key, None)
    stripped: dict[str, Any] = json.loads(json.dumps(program))
    return stripped


class Planner:
    """Sockets of ranks, made by `socket_of`; `told` waits for what the ranks tell, and returns it with the rank.

    `connects` answers whether a group is to connect at once, and `messages` whether the times of messages are wanted. A
    rank that is in `silent` gets no plans.
    """

    def __init__(self, folder: Path, *, seed: int = 0, connects: bool = True, messages: bool = False) -> None:
        self._folder, self._seed, self._connects, self.wants_messages = folder, seed, connects, messages
        self._told: list[tuple[int, dict[str, Any]]] = []
        self.asked: list[tuple[int, dict[str, Any]]] = []
        self.silent = set[int]()
        self._plans: dict[object, dict[str, Any]] = {}
        self._had: dict[tuple[int, str], set[str]] = {}
        self._lock = threading.Lock()
        self._listeners: list[socket.socket] = []

    def told(self, enough: Callable[[list[tuple[int, dict[str, Any]]]], bool]) -> list[tuple[int, dict[str, Any]]]:
        """Return all that was told once it is enough, or after ten seconds: it is told after the ranks' work."""
        deadline = time.monotonic() + 10
        while not enough(self._told) and time.monotonic() < deadline:
            time.sleep(0.01)
        return list(self._told)

    def socket_of(self, rank: int) -> Path:
        """Listen for a rank, and return the socket's path."""
        path = self._folder / f"rank{rank}"
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(path))
        listener.listen(64)
        self._listeners.append(listener)
        threading.Thread(target=self._accept, args=(rank, listener), daemon=True).start()
        return path

    def close(self) -> None:
        """Stop to listen."""
        for listener in self._listeners:
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()

    def _accept(self, rank: int, listener: socket.socket) -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(rank, peer), daemon=True).start()

    def _serve(self, rank: int, peer: socket.socket) -> None:
        ranks: dict[str, list[int]] = {}
        with peer, peer.makefile("rw") as stream:
            for line in stream:
                message = json.loads(line)
                if "tell" in message:
                    self._told.append((rank, message))
                    continue
                self.asked.append((rank, message))
                if message["ask"] == "group":
                    ranks[message["group"]] = message["ranks"]
                    with self._lock:  # it may be another process
                        self._had[rank, message["group"]] = set()
                    answer: Mapping[str, object] = {"group": message["group"], "connect": self._connects}
                elif rank in self.silent:
                    continue
                else:
                    answer = self._planned(rank, message, ranks[message["group"]])
                stream.write(json.dumps(answer) + "\n")
                stream.flush()

    def _planned(self, rank: int, asked: Mapping[str, Any], ranks: list[int]) -> dict[str, object]:
        kind = asked["kind"]
        size = 0 if kind == "alltoall" else asked["bytes"]  # parts may differ: the first to ask says how large
        key = (tuple(ranks), asked["group"], asked["number"], kind, size, asked["root"])
        with self._lock:
            if key not in self._plans:
                self._plans[key] = plan(
                    kind,
                    size_bytes=asked["bytes"],
                    unit_bytes=asked["unit"],
                    root=asked["root"],
                    ranks=len(ranks),
                    draw=random.Random(f"{self._seed} {key}"),
                )
            made = self._plans[key]
            of_rank = f"{ranks.index(rank)} {made['id']}"
            had = self._had[rank, asked["group"]]
            is_known = of_rank in had
            had.add(of_rank)
        content = {**made["content"], "program": made["programs"][ranks.index(rank)]}
        wants = {"messages": True} if self.wants_messages else {}
        return {"plan": of_rank, "delay_ns": 0, "content": None if is_known else content, **wants}
