"""What can be typed at the prompt, as values: each verb's words to a command, or a sentence on what is wrong. Pure."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from scenarios.document import did_you_mean, shown
from scenarios.keys import MAX_SEED
from scenarios.plan import MODES
from scenarios.prompt.commands import (
    AllGather,
    Cable,
    Capture,
    Command,
    Delay,
    Flows,
    Iperf,
    Paths,
    PromptError,
    Rate,
    Resample,
    Ring,
    SetMode,
    Wan,
)
from topologies import units
from topologies.fabric import Fabric

MAX_COUNT = 1000
MAX_SECONDS = 3600
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,99}")


@dataclass(frozen=True)
class Verb:
    """A verb: the words it takes, as help shows them, what it does, and how its words are read."""

    usage: str
    help: str
    read: Callable[[Fabric, Sequence[str]], Command]


def parse(verb: str, line: str, fabric: Fabric) -> Command:
    """The command of a verb of VERBS and the words behind it; raises PromptError."""
    return VERBS[verb].read(fabric, line.split())


def _nothing(command: Wan | Paths) -> Callable[[Fabric, Sequence[str]], Command]:
    def read(_: Fabric, words: Sequence[str]) -> Command:
        if words:
            raise PromptError(f"{_said(words)} is too much: allowed is {type(command).__name__.lower()} alone")
        return command

    return read


def _resample(_: Fabric, words: Sequence[str]) -> Command:
    if not words:
        return Resample(seed=None)
    return Resample(seed=_whole(_one(words, "resample [SEED]"), "seed", 0, MAX_SEED))


def _rate(fabric: Fabric, words: Sequence[str]) -> Command:
    name, text = _first_and_rest(words, 'rate LINK RATE, such as rate s0b0>s1b0 "40 Gbit/s"')
    link = link_index(fabric, name)
    try:
        return Rate(link=link, rate_bps=units.parse_rate_bps(text))
    except units.UnitError as error:
        raise PromptError(str(error)) from None


def _delay(fabric: Fabric, words: Sequence[str]) -> Command:
    name, text = _first_and_rest(words, 'delay LINK TIME, such as delay s0b0>s1b0 "5 ms"')
    link = link_index(fabric, name)
    try:
        return Delay(link=link, delay_s=units.parse_delay_s(text))
    except units.UnitError as error:
        raise PromptError(str(error)) from None


def _ring(fabric: Fabric, words: Sequence[str]) -> Command:
    if not words or list(words) in (["best"], ["rank"]):
        return Ring(order=words[0] if words else None)
    names = [name for word in words for name in word.split(",") if name]
    if len(names) == 1 and not _is_gpu(fabric, names[0]):
        hint = did_you_mean(names[0], ("best", "rank"))
        raise PromptError(f"{_said(names)} is no ring: allowed is best, rank, or every GPU once in order{hint}")
    order = tuple(_rank(fabric, name) for name in names)
    twice = next((rank for place, rank in enumerate(order) if rank in order[:place]), None)
    if twice is not None:
        raise PromptError(f"g{twice} is in the ring twice: allowed is every GPU once")
    missing = [gpu.name for gpu in fabric.gpus if gpu.rank not in order]
    if missing:
        raise PromptError(f"the ring lacks {', '.join(missing)}: allowed is every GPU once")
    for src, dst in zip(order, [*order[1:], order[0]], strict=True):
        a, b = fabric.gpus[src].site, fabric.gpus[dst].site
        if a != b and not fabric.paths_between.get((a, b)):
            raise PromptError(f"no path leads over the WAN from g{src} to g{dst}: allowed is a ring along the WAN")
    return Ring(order=order)


def _mode(_: Fabric, words: Sequence[str]) -> Command:
    if not words:
        return SetMode(name=None)
    name = _one(words, "mode [MODE]")
    if name not in MODES:
        raise PromptError(f"{_said(words)} is no mode: allowed is {', '.join(MODES)}{did_you_mean(name, MODES)}")
    return SetMode(name=name)


def _allgather(_: Fabric, words: Sequence[str]) -> Command:
    if not words:
        raise PromptError('allgather needs a size: allowed is allgather SIZE [COUNT], such as allgather "64 MB" 3')
    text = _unquoted(words)
    match = re.fullmatch(r"(.*[A-Za-z])\s+(\S+)", text)
    size, count = (match[1], match[2]) if match else (text, "1")
    if match and not count[:1].isdigit() and count[:1] not in "+-":
        size, count = text, "1"  # the unit, with a blank before it
    try:
        chunk_bytes = units.parse_size_bytes(size)
    except units.UnitError as error:
        raise PromptError(str(error)) from None
    return AllGather(chunk_bytes=chunk_bytes, count=_whole(count, "count", 1, MAX_COUNT))


def _flows(fabric: Fabric, words: Sequence[str]) -> Command:
    name = _one(words, "flows SWITCH")
    names = [switch.name for switch in fabric.switches]
    if name not in names:
        raise PromptError(f"{_said(words)} is no switch: allowed is {', '.join(names)}{did_you_mean(name, names)}")
    return Flows(switch=name)


def _capture(fabric: Fabric, words: Sequence[str]) -> Command:
    if list(words) == ["stop"]:
        return Capture(link=None, file=None)
    if len(words) != 2:
        raise PromptError(f"capture takes two words, not {len(words)}: allowed is capture LINK FILE, or capture stop")
    if not _FILE.fullmatch(words[1]):
        allowed = "allowed is a name of letters, digits and . _ + -, without a folder"
        raise PromptError(f"{_said(words[1:])} is no name for the file: {allowed}")
    return Capture(link=link_index(fabric, words[0]), file=words[1])


def _iperf(fabric: Fabric, words: Sequence[str]) -> Command:
    if not words:
        words = [fabric.gpus[0].name, fabric.gpus[-1].name]
    if len(words) not in (2, 3):
        raise PromptError(f"iperf takes two GPUs, not {_said(words)}: allowed is iperf GPU GPU [SECONDS]")
    src, dst = _rank(fabric, words[0]), _rank(fabric, words[1])
    if src == dst:
        raise PromptError(f"iperf is from one GPU to another, and both are g{src}")
    seconds = _whole(words[2], "number of seconds", 1, MAX_SECONDS) if words[2:] else 5
    return Iperf(src=src, dst=dst, seconds=seconds)


def _cable(fabric: Fabric, words: Sequence[str]) -> Command:
    if len(words) != 3 or words[2] not in ("up", "down"):
        raise PromptError(f"link is given {_said(words)}: allowed is link NODE NODE up, or down")
    nodes = [*(gpu.name for gpu in fabric.gpus), *(switch.name for switch in fabric.switches)]
    for word in words[:2]:
        if word not in nodes:
            raise PromptError(f"{_said([word])} is no node: allowed is {', '.join(nodes)}{did_you_mean(word, nodes)}")
    joined = {frozenset((cable.a, cable.b)) for cable in fabric.cables}
    if frozenset(words[:2]) not in joined:
        near = sorted(name for pair in joined if words[0] in pair for name in pair if name != words[0])
        raise PromptError(f"no cable joins {words[0]} and {words[1]}: {words[0]} is joined to {', '.join(near)}")
    return Cable(a=words[0], b=words[1], up=words[2] == "up")


def link_index(fabric: Fabric, name: str) -> int:
    """The index of the logical link of that name; raises PromptError."""
    names = {link.name: link.index for link in fabric.links}
    if name in names:
        return names[name]
    wan = [link.name for link in fabric.links if link.kind == "wan"]
    hint = did_you_mean(name, names)
    raise PromptError(
        f"{_said([name])} is no link: allowed is FROM>TO, such as {wan[0]} (WAN) or {fabric.links[0].name}{hint}"
    )


def _rank(fabric: Fabric, name: str) -> int:
    if not _is_gpu(fabric, name):
        raise PromptError(f"{_said([name])} is no GPU: allowed is g0 to g{len(fabric.gpus) - 1}")
    return int(name.removeprefix("g"))


def _is_gpu(fabric: Fabric, name: str) -> bool:
    return re.fullmatch(r"g?[0-9]{1,4}", name) is not None and int(name.removeprefix("g")) < len(fabric.gpus)


def _whole(text: str, what: str, least: int, most: int) -> int:
    if not re.fullmatch(r"[0-9]{1,20}", text) or not least <= int(text) <= most:
        raise PromptError(f"{_said([text])} is no {what}: allowed is a whole number from {least:,} to {most:,}")
    return int(text)


def _one(words: Sequence[str], usage: str) -> str:
    if len(words) != 1:
        raise PromptError(f"{_said(words) if words else 'nothing'} is given: allowed is {usage}")
    return words[0]


def _first_and_rest(words: Sequence[str], usage: str) -> tuple[str, str]:
    if len(words) < 2:
        raise PromptError(f"{_said(words) if words else 'nothing'} is given: allowed is {usage}")
    return words[0], _unquoted(words[1:])


def _unquoted(words: Sequence[str]) -> str:
    """The words as one text; quotes are allowed and not needed."""
    return " ".join(words).replace('"', "").replace("'", "")


def _said(words: Sequence[str]) -> str:
    return shown(" ".join(words))


VERBS: Mapping[str, Verb] = MappingProxyType(
    {
        "wan": Verb("", "every WAN link: its rate, its delay, and the collectives' bytes on it", _nothing(Wan())),
        "resample": Verb("[SEED]", "new conditions: the next of the seed, or the first of another", _resample),
        "rate": Verb("LINK RATE", "give a logical link another rate: rate s0b0>s1b0 40 Gbit/s", _rate),
        "delay": Verb("LINK TIME", "give a logical link another delay: delay s0b0>s1b0 5 ms", _delay),
        "ring": Verb("[ORDER|best|rank]", "show or set the ring: ring best, ring 0 2 1 3 7 5 6 4", _ring),
        "paths": Verb("", "the WAN paths of the ring: what each would cost, and which is in use", _nothing(Paths())),
        "mode": Verb("[MODE]", "show or set what is chosen anew: base, ccl, wan or joint", _mode),
        "allgather": Verb("SIZE [COUNT]", "run AllGathers: measured, predicted, ratio; Ctrl-C aborts", _allgather),
        "flows": Verb("SWITCH", "the OpenFlow rules of a switch, readable", _flows),
        "capture": Verb("LINK FILE|stop", "write a logical link's packets to a pcap file, until stop", _capture),
        "iperf": Verb("[GPU GPU [SECONDS]]", "what TCP carries between two GPUs, beside the links' rate", _iperf),
        "link": Verb("NODE NODE up|down", "bring a cable up or down", _cable),
    }
)
"""The verbs that are read here, in the order in which help lists them."""
