"""Parses the arguments of the prompt's verbs, and completes them for Tab. Pure functions.

Every parser takes the text after a verb and raises PromptError with the offending word and what is allowed.
"""

import re
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, TypeVar

from hosts.collectives.kinds import ALGORITHMS
from scenarios.policies.policy import MODES
from scenarios.prompt.state import candidates, crosses, edges
from scenarios.spec.jobs import JobSpec, read
from scenarios.spec.keys import MAX_SEED
from topologies import units
from topologies.errors import SpecError, did_you_mean, elements, format_value, list_first
from topologies.fabric.addressing import Cable
from topologies.fabric.fabric import Fabric
from topologies.fabric.failures import Cables, cable
from topologies.fabric.link_names import directions, node_of
from topologies.fabric.ports import links_in_grain

MAX_COUNT = 1000
MAX_SECONDS = 3600
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,99}")
_MAX_NAMES = 24  # in a list of what is allowed
_MANY = 1000

Quantity = TypeVar("Quantity")


class PromptError(Exception):
    """A line that cannot be executed: one sentence with the offending word and what is allowed."""


def words(line: str, usage: str, least: int, most: int) -> list[str]:
    """Return the words of a line, of which there must be from `least` to `most`."""
    split = line.split()
    if not least <= len(split) <= most:
        raise PromptError(f"got {format_value(' '.join(split)) if split else 'nothing'}; allowed: {usage}")
    return split


def seed(line: str) -> int | None:
    """Parse an optional seed."""
    given = words(line, "resample [SEED]", 0, 1)
    return whole(given[0], "a seed", 0, MAX_SEED) if given else None


def rounds(line: str) -> int:
    """Parse an optional number of rounds."""
    given = words(line, "round [COUNT]", 0, 1)
    return whole(given[0], "a count", 1, MAX_COUNT) if given else 1


def mode(line: str, modes: Collection[str] = MODES) -> str | None:
    """Parse an optional name of a mode."""
    given = words(line, "mode [MODE]", 0, 1)
    return choice(given[0], "mode", modes) if given else None


def program(fabric: Fabric, line: str) -> tuple[tuple[int, ...], str]:
    """Parse the ranks to run a program on (all if none is named), and its command."""
    names, command = [gpu.name for gpu in fabric.gpus], line
    if match := re.fullmatch(r"\s*([^\s:]*):(?:\s+(.*))?", line):
        try:
            names, command = elements(match[1], match[1].split(",")), match[2] or ""
        except ValueError as error:
            raise PromptError(str(error)) from None
    if not command.strip():
        raise PromptError("got no command; allowed: run [GPU,...:] COMMAND, such as run g0,g4: hostname")
    ranks = tuple(rank(fabric, name) for name in names)
    if len(set(ranks)) < len(ranks):
        raise PromptError(f"{format_value(','.join(names))} has a GPU twice; allowed: each once")
    return ranks, command.strip()


def link_rate(fabric: Fabric, line: str) -> tuple[tuple[int, ...], int]:
    """Parse a link or port, or both directions of one, returned by their indices, and a rate in bit/s."""
    link, *text = _link_words(fabric, line, "rate LINK RATE, such as rate s0b0>s1b0 40 Gbit/s", 2, _MANY)
    return link_indices(fabric, link), _quantity(units.parse_rate_bps, " ".join(text))


def link_delay(fabric: Fabric, line: str) -> tuple[tuple[int, ...], float]:
    """Parse a link or port, or both directions of one, returned by their indices, and a delay in seconds."""
    link, *text = _link_words(fabric, line, "delay LINK TIME, such as delay s0b0>s1b0 5 ms", 2, _MANY)
    return link_indices(fabric, link), _quantity(units.parse_delay_s, " ".join(text))


class Sized(NamedTuple):
    """Collectives as a line asks for them: their size in bytes, which is that of the buffer as in nccl-tests or, if it
    `is_chunk`, of a block; how many `times` it runs; and an algorithm, None for the default one."""

    size_bytes: int
    is_chunk: bool
    times: int
    algorithm: str | None


def collective(kind: str, line: str) -> Sized:
    """Parse a size, a number of collectives, and optionally the name of an algorithm of this kind."""
    usage = f"{kind} [chunk] SIZE [COUNT] [ALGORITHM], such as {kind} 64 MB 3 {ALGORITHMS[kind][0]}"
    *size, last = words(line, usage, 1, _MANY)
    if is_chunk := size[:1] == ["chunk"]:
        size = size[1:]
    algorithm = None
    if size and last.isascii() and last.replace("-", "").isalpha() and last not in units.SIZE.units:
        algorithm = choice(last, f"algorithm of {kind}", ALGORITHMS[kind])
    else:
        size.append(last)
    text, count = " ".join(size), "1"
    if match := re.fullmatch(r"""(.*[A-Za-z]["']?)\s+([0-9+-]\S*)""", text):  # a number after the unit is the count
        text, count = match.groups()
    try:
        size_bytes = _quantity(units.parse_size_bytes, text)
    except PromptError as error:
        raise PromptError(f"{error} (a line is {usage})" if " " in text.strip() else str(error)) from None
    return Sized(size_bytes, is_chunk, whole(count, "a count", 1, MAX_COUNT), algorithm)


def _link_words(fabric: Fabric, line: str, usage: str, least: int, most: int) -> list[str]:
    """Return the words of a line that begins with a link, which may have spaces around its sign, as `words` does."""
    first, *rest = re.sub(r"\s*([>:])\s*", r"\1", line).split() or [""]
    if first in (names := nodes(fabric)) and rest[:1] and rest[0] in names:
        raise PromptError(f"{format_value(f'{first} {rest[0]}')} are two nodes; allowed: a link as {first}>{rest[0]}")
    return words(" ".join([first, *rest]), usage, least, most)


def _quantity(parse: Callable[[str], Quantity], text: str) -> Quantity:
    """Parse a quantity with its unit; quotes around it are optional."""
    try:
        return parse(_unquoted(text))
    except units.UnitError as error:
        raise PromptError(str(error)) from None


def _unquoted(text: str) -> str:
    return text.replace('"', "").replace("'", "")


def transfer(fabric: Fabric, line: str, name: str) -> JobSpec:
    """Parse a transfer and give it this name: a size by a deadline, or a rate for a duration."""
    match = re.fullmatch(r"\s*(.+?)\s+(\S+)\s+(\S+)\s+(by|for)\s+(.+)", line.replace(">", " "))
    if match is None:
        usage = "admit SIZE GPU GPU by TIME, such as admit 20 MB g0 g4 by 10 ms, or admit RATE GPU GPU for TIME"
        raise PromptError(f"got {format_value(line.strip()) if line.strip() else 'nothing'}; allowed: {usage}")
    amount, src, dst, kind, time = match.groups()
    amount_key, time_key = ("size", "deadline") if kind == "by" else ("rate", "duration")
    ranks = [rank(fabric, src), rank(fabric, dst)]
    table = {"name": name, "kind": "transfer", "ranks": ranks}
    try:
        (job,) = read([table | {amount_key: _unquoted(amount), time_key: _unquoted(time)}])
    except SpecError as error:
        raise PromptError("; ".join(mistake.text for mistake in error.mistakes)) from None
    return job


def ring(fabric: Fabric, line: str) -> str | tuple[int, ...] | None:
    """Parse an optional ring: "best", "rank", or every GPU once in order, returned as ranks; as `ring` prints a ring,
    ">" may separate the GPUs and the first one may close it."""
    names = re.findall(r"[^\s,>]+", line)
    if len(names) > len(fabric.gpus) and names[0] == names[-1] and ">" in line:
        names.pop()
    if not names:
        return None
    if len(names) == 1 and not _is_gpu(fabric, names[0]):
        return choice(names[0], "ring", ("best", "rank"), "best, rank, or every GPU once in order")
    order = tuple(rank(fabric, name) for name in names)
    twice = [order[index] for index in range(len(order)) if order[index] in order[:index]]
    if twice:
        raise PromptError(f"g{twice[0]} is in the ring twice; allowed: every GPU once")
    missing = [gpu.name for gpu in fabric.gpus if gpu.rank not in order]
    if missing:
        raise PromptError(f"the ring lacks {', '.join(missing)}; allowed: every GPU once")
    for src, dst in edges(order):
        if crosses(fabric, src, dst) and not candidates(fabric, src, dst):
            raise PromptError(f"no WAN path leads from g{src} to g{dst}; allowed: a ring along the WAN")
    return order


def unknown_verb(line: str, verbs: Collection[str], nodes: Collection[str], *, is_program: bool) -> str:
    """Return the sentence for a line that begins with no verb and no node; `is_program`: it begins with a program.

    A program runs on a node, whose name comes first: where a node's name follows the program, it is that one.
    """
    first, *rest = line.split()
    if is_program:
        text = f"{format_value(first)} is a program, not a verb: it runs on a node"
        named = [word for word in rest if word in nodes]
        node = next((name for name in nodes if name not in named), first)
        if rest[:1] == named[:1] and len(named) > 1:
            node, *rest = rest
        return f"{text}; allowed: NODE CMD, such as {' '.join([node, first, *rest])}"
    if first in ("q", "bye", "logout"):
        return f"unknown verb {format_value(first)}; allowed: exit, or Ctrl-D"
    hint = did_you_mean(first, [*verbs, *nodes])
    return f"unknown verb or node {format_value(first)}: help lists what is allowed{hint}"


def switch(fabric: Fabric, line: str) -> str:
    """Parse the name of a switch."""
    (name,) = words(line, "flows SWITCH", 1, 1)
    return choice(name, "switch", _switches(fabric))


def switch_change(fabric: Fabric, line: str) -> tuple[str, bool]:
    """Parse the name of a switch, and whether to start it (True) or to stop it."""
    usage = "switch NAME start, or stop"
    name, change = words(line, usage, 2, 2)
    choice(name, "switch", _switches(fabric))
    return name, choice(change, "change of a switch", ("start", "stop"), usage) == "start"


def link_file(fabric: Fabric, line: str) -> tuple[int, str] | None:
    """Parse a link or port, returned by its index, and a file name; None for "stop"."""
    if line.split() == ["stop"]:
        return None
    link, file = _link_words(fabric, line, "capture LINK FILE, such as capture s0b0>s1b0 a.pcap, or capture stop", 2, 2)
    return link_index(fabric, link), _file(file)


def file(line: str) -> str:
    """Parse the name of a file in the session's folder."""
    (name,) = words(line, "save FILE, such as save now.toml", 1, 1)
    return _file(name)


def _file(name: str) -> str:
    if not _FILE.fullmatch(name):
        allowed = "a name of letters, digits and . _ + -, without a folder"
        raise PromptError(f"{format_value(name)} is not a file name; allowed: {allowed}")
    return name


def flow(fabric: Fabric, line: str, default_s: float) -> tuple[int, int, float]:
    """Parse the ranks of a sender and a receiver, by default the first and the last GPU, and a duration in s."""
    usage = "iperf GPU GPU [SECONDS]"
    src, dst, *seconds = words(line or f"{fabric.gpus[0].name} {fabric.gpus[-1].name}", usage, 2, 3)
    a, b = rank(fabric, src), rank(fabric, dst)
    if a == b:
        raise PromptError(f"iperf needs two different GPUs, and both are g{a}")
    return a, b, whole(seconds[0], "a number of seconds", 1, MAX_SECONDS) if seconds else default_s


def duration(line: str) -> float:
    """Parse a time, returned in seconds."""
    return _quantity(units.parse_delay_s, " ".join(words(line, "wait TIME, such as wait 100 ms", 1, _MANY)))


def kind_of(line: str) -> tuple[str, str]:
    """Split a line into the name of a collective and the rest."""
    usage = "collective KIND [chunk] SIZE [COUNT] [ALGORITHM], such as collective allreduce 8 MB"
    name, *rest = words(line, usage, 2, _MANY)
    return choice(name, "collective", ALGORITHMS), " ".join(rest)


def cable_change(fabric: Fabric, line: str) -> tuple[Cable, bool]:
    """Parse the two ends of a cable, "s0b0 s1b0" or as its name "s0b0-s1b0#2", and whether to bring it up (True) or
    down."""
    usage = "link NODE NODE up, or down"
    *ends, change = words(line, usage, 2, 3)
    if len(ends) == 1 and (both := directions(ends[0]))[1:]:
        ends = both[0].split(">")
    if len(ends) != 2:
        raise PromptError(f"{format_value(ends[0])} is not a cable; allowed: {usage}, such as link s0b0 s1b0 down")
    a, b = ends
    for node in (a, b):
        choice(node_of(node), "node", nodes(fabric))
    joined = neighbours(fabric, node_of(a))
    found = [one for one in fabric.cables if cable(*one.directions[0]) == cable(a, b)]
    if not found:
        raise PromptError(f"no cable joins {a} and {b}: {node_of(a)} is joined to {', '.join(joined)}")
    return found[0], choice(change, "change of a cable", ("up", "down"), usage) == "up"


def link_index(fabric: Fabric, name: str) -> int:
    """Return the index of the logical link or port of that name; raises PromptError, also for both directions."""
    indices = link_indices(fabric, name)
    if len(indices) > 1:
        one = directions(name)[0]
        raise PromptError(f"{format_value(name)} is both directions; allowed: one of them, such as {one}")
    return indices[0]


def link_indices(fabric: Fabric, name: str) -> tuple[int, ...]:
    """Return the index of the logical link or port of that name, or of both directions; raises PromptError."""
    links = links_in_grain(fabric).all
    names, named = {link.name: link.index for link in links}, directions(name)
    wan = [f"{link.name} (WAN) or " for link in links if link.kind == "wan"][:1]
    if not names.keys() >= {*named}:
        choice(name, "link", names, f"FROM>TO, such as {''.join(wan)}{links[0].name}")
    return tuple(names[one] for one in named)


def rank(fabric: Fabric, name: str) -> int:
    """Return the rank of a GPU given as "g4" or "4"; raises PromptError."""
    if not _is_gpu(fabric, name):
        raise PromptError(f"unknown GPU {format_value(name)}; allowed: g0 to g{len(fabric.gpus) - 1}")
    return int(name.removeprefix("g"))


def choice(word: str, kind: str, names: Collection[str], allowed: str = "") -> str:
    """Return the word if it is one of `names`; else raise PromptError, with `allowed` or a list of the names."""
    if word in names:
        return word
    allowed = allowed or list_first([*names], _MAX_NAMES)
    raise PromptError(f"unknown {kind} {format_value(word)}; allowed: {allowed}{did_you_mean(word, names)}")


def whole(text: str, kind: str, least: int, most: int) -> int:
    """Parse an integer from `least` to `most`; raises PromptError."""
    if not re.fullmatch(r"[0-9]{1,20}", text) or not least <= int(text) <= most:
        raise PromptError(f"{format_value(text)} is not {kind}; allowed: a whole number from {least:,} to {most:,}")
    return int(text)


def _is_gpu(fabric: Fabric, name: str) -> bool:
    return re.fullmatch(r"g?[0-9]{1,4}", name) is not None and int(name.removeprefix("g")) < len(fabric.gpus)


def completions(fabric: Fabric, words: Sequence[str], dead: Cables, modes: Collection[str] = MODES) -> Sequence[str]:
    """Return the words that can follow `words` in a line, given the failed cables and the names of modes."""
    verb, given = words[0], words[1:]
    gpus, links = [gpu.name for gpu in fabric.gpus], [link.name for link in links_in_grain(fabric).all]
    position: dict[str, list[Sequence[str]]] = {  # the words allowed at each position after a verb
        "rate": [links],
        "delay": [links],
        "capture": [[*links, "stop"]],
        "mode": [list(modes)],
        "policy": [list(modes)],
        "run": [[f"{name}:" for name in gpus]],
        "collective": [list(ALGORITHMS)],
        "flows": [_switches(fabric)],
        "iperf": [gpus, gpus],
        "demand": [["clear"]],
        "link": [nodes(fabric), neighbours(fabric, given[0]) if given else [], []],
        "switch": [_switches(fabric), ["start", "stop"]],
        "ring": [["best", "rank", *gpus], *([[name for name in gpus if name not in given]] * len(gpus))],
    }
    if verb == "link" and len(given) == 2:
        return ["up" if cable(*given) in dead else "down"]
    if verb == "admit":  # the first argument, a size or a rate, has one word or two
        return [*gpus, "by", "for"] if given else []
    if verb == "collective" and given:
        verb, *given = given
    if verb in ALGORITHMS:
        return ALGORITHMS[verb] if given else []
    if verb in position:
        return position[verb][len(given)] if len(given) < len(position[verb]) else []
    if verb in nodes(fabric):
        return gpus
    return nodes(fabric) if verb in ("xterm", "x", "noecho") else []


def completed(
    fabric: Fabric, words: Sequence[str], text: str, *, dead: Cables, verbs: Collection[str], modes: Collection[str]
) -> list[str]:
    """Return the completions of the word `text` after `words`, sorted; the other arguments are as for `completions`.

    `verbs` can begin a line, and follow `help`.
    """
    names: Collection[str]
    if not words:
        names = {*verbs, *nodes(fabric)}
    elif words[0] == "help":
        names = verbs
    else:
        names = completions(fabric, words, dead, modes)
    return sorted(name for name in names if name.startswith(text))


def neighbours(fabric: Fabric, node: str) -> list[str]:
    """Return the far ends of the cables of `node` (`link_names.end`)."""
    return [far for one in fabric.cables for near, far in one.directions if near == node]


def nodes(fabric: Fabric) -> list[str]:
    """Return the names of all GPUs and switches."""
    return [*(gpu.name for gpu in fabric.gpus), *_switches(fabric)]


def _switches(fabric: Fabric) -> list[str]:
    return [switch.name for switch in fabric.switches]
