"""A configuration in words: its label, which names every key that is not at its default, and its place in a sweep.

A table with too many entries for a label is told apart by a number in hexadecimal digits, "12 jobs (#3f09ac)".
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from itertools import groupby
from typing import Any, Protocol

from analysis.statistics.contests import JOBS, MODE, SEEDS, Setting, Value, without_common
from analysis.statistics.declared_faults import unmodelled_sentence
from analysis.statistics.jobs_in_words import JOINED, shortened, words_of
from hosts.agent.transport import CongestionControl
from hosts.collectives.kinds import SELF_SIZED_KINDS, TRAINING
from hosts.collectives.training import Training
from scenarios.policies.knowledge import Knowledge
from scenarios.spec.classes import ClassSpec
from scenarios.spec.collective import CollectiveSpec
from scenarios.spec.jobs import TRANSFER, JobSpec
from scenarios.spec.keys import KEYS
from scenarios.spec.run import RunSpec
from topologies import units
from topologies.conditions.sampler import ConditionsSpec, delays_s
from topologies.errors import SpecError
from topologies.fabric import link_names
from topologies.fabric.fabric import FabricSpec, build_fabric
from topologies.fabric.ports import links_in_grain
from topologies.fabric.wan import WanSpec
from topologies.shaping.rate_scale import FULL_SCALE
from topologies.text_files import short_path

_STATED = {
    *("fabric.gpus", "fabric.wan", "fabric.sites", "conditions.wan_delay"),
    *("collective.kind", "collective.algorithm", "collective.chunk", "collective.size"),
    *("run.clock", "run.rate_scale"),
}
"""The keys that a label begins or ends with."""
_WITHOUT_EFFECT = {
    *("name", "run.modes", "run.referees", "run.search", "run.baseline", "run.machines", "policy", "collective.count"),
    *("collective.emulated", "collective.budget"),
    *(f"program.{name}" for name in ("deadline", "sample", "memory", "processes", "output", "files")),
    *("program.capture", "program.preload"),
}
"""The keys that change no time of a point, or that are told beside the label."""
_PLAIN = ("fabric.routing",)
"""The keys whose values speak for themselves."""
_TABLES = (JOBS, "class", "conditions.links", "fault", "program.role")
"""The keys whose values are tables, of which each entry is a part of a label."""
_FILES = ("conditions.trace", "collective.schedule", "program.kernels")
"""The keys whose values are files."""
_IN_TRAINING = tuple(f"training.{name}" for name in ("pipeline", "stages", "micro_batches", "replicas"))
_MOST, _MOST_SWEPT = 3, 8  # entries of a table that are named
_MOST_LINKS = 4  # of a WAN
_ROUND_BPS = 10_000_000  # rates are told to six digits of Gbit/s


class Configuration(Protocol):
    """What a label tells of a configuration, as `Scenario` has it."""

    @property
    def fabric(self) -> FabricSpec: ...
    @property
    def conditions(self) -> ConditionsSpec: ...
    @property
    def collective(self) -> CollectiveSpec: ...
    @property
    def training(self) -> Training: ...
    @property
    def jobs(self) -> tuple[JobSpec, ...]: ...
    @property
    def run(self) -> RunSpec: ...
    @property
    def at(self) -> tuple[tuple[str, Any], ...]: ...
    @property
    def gpus(self) -> int: ...
    @property
    def kinds(self) -> Set[str]: ...
    @property
    def label(self) -> str: ...
    @property
    def hashed_modes(self) -> tuple[str, ...]: ...
    @property
    def chooses_rings(self) -> bool: ...
    def value(self, key: str) -> Any: ...


def label_of(config: Configuration, defaults: Configuration, *, uses: Callable[[str], bool] = lambda _key: True) -> str:
    """Return a configuration in words: "8 GPUs, 8 MB blocks, 64 MB buffer, 10 us", and then every other key that is not
    at its default, and that the configuration `uses`. Swept keys are named in any case.

    A single number of GPUs means two equal sites; for other fabrics the sites are listed, as in "4+4+4+4 GPUs", or it
    is "8 GPUs in one site".
    """
    sites = config.fabric.gpus_per_site
    gpus = config.gpus if sites == sites[:1] * 2 else "+".join(map(str, sites))
    one_site = len(sites) == 1
    words = [f"{gpus} GPUs{' in one site' if one_site else ''}", *_collective_words(config, defaults)]
    if not one_site:
        words.append(_wan_words(config))
    swept, told = dict(config.at), ((key, _further_words(config, key, defaults)) for key in KEYS)
    words += [of_key for key, of_key in told if of_key and (key in swept or uses(key))]
    if config.run.is_real:
        carried = units.format_size(config.run.scale.chunk_bytes(config.collective.chunk_bytes))
        has_blocks = config.kinds - {*SELF_SIZED_KINDS} and not _is_program(config)
        size = f" with blocks of {carried}" if has_blocks else ""
        scaled = "" if config.run.scale == FULL_SCALE else f" at {config.run.scale} of the rates{size}"
        words.append(f"wall clock{scaled}")
    return ", ".join(words)


def labels_in_table(configs: Sequence[Configuration]) -> tuple[str, list[str]]:
    """Return what the labels of a table's rows share or leave out, if that is long, and what each row then has: of jobs
    that are swept their names and what differs."""
    labels, jobs = shortened([one.label for one in configs], [[job.written() for job in one.jobs] for one in configs])
    common, own = without_common(labels, 0) if jobs else without_common(labels)
    return ", ".join(filter(None, [common, *jobs])), own


def conditions_of_all(config: Configuration, defaults: Configuration) -> list[str]:
    """Return every key in words that is neither swept nor at its default, beyond those that figures' titles begin with:
    with all classes, as other configurations may have jobs of them."""
    given, wan = [key for key in KEYS if key not in dict(config.at)], config.fabric.wan
    is_titled = not wan.km and wan != FabricSpec().wan and len(config.fabric.gpus_per_site) > 1
    of_wan = [_wan_name(wan)] if is_titled and "fabric.wan" in given else []
    further = (_further_words(config, key, defaults, all_classes=True) for key in given)
    return [*of_wan, *(words for words in further if words)]


def setting_of(index: int, config: Configuration) -> Setting:
    """Return the place of a configuration among those of its sweep."""
    return Setting(
        index=index,
        label=config.label,
        kind="jobs" if config.jobs else config.collective.kind,
        iterations=config.training.every if config.collective.kind == TRAINING and not config.jobs else 1,
        at=tuple(Value(key, value_words(key, value), _number(key, value)) for key, value in config.at),
        jobs=tuple(job.written() for job in config.jobs),
        is_unmodelled=bool(unmodelled_sentence([KEYS["fault"].kind.write(config.value("fault"))])),
        hashed=config.hashed_modes,
        modes=config.run.modes,
        own=tuple(one.name for one in config.value("policy")),
        baseline=baseline_of(config),
    )


def baseline_of(config: Configuration) -> dict[str, str]:
    """Return the values in words of the swept keys (and of MODE) whose baseline the user has chosen.

    Raises ValueError for a key that is not swept, for the seed, and for a value that cannot be read.
    """
    swept, wanted = dict(config.at), dict[str, str]()
    for text in config.run.baseline:
        name, _, written = text.partition("=")
        key = _key_of(name.strip(), swept)
        wanted[key] = written.strip() if key == MODE else value_words(key, _read(key, written.strip()))
    return wanted


def _key_of(name: str, swept: Mapping[str, Any]) -> str:
    found = [key for key in (MODE, *swept) if name in (key, key.rpartition(".")[2])]
    allowed = ", ".join((MODE, *(key for key in swept if key not in SEEDS)))
    if len(found) == 1 and found[0] in SEEDS:
        raise ValueError(f"{name!r} has no baseline, as seeds are repetitions; allowed: {allowed}")
    if len(found) != 1:
        raise ValueError(f"{name!r} is {'not swept' if not found else 'not clear'}; allowed: {allowed}")
    return found[0]


def _read(key: str, written: str) -> Any:
    for meant in (_plain_number(written), written):
        if meant is not None:
            try:
                return KEYS[key].kind.read(meant)
            except ValueError as error:
                why = error
    raise why


def _plain_number(text: str) -> int | float | bool | None:
    if text in ("true", "false"):
        return text == "true"
    try:
        number = float(text)
    except ValueError:
        return None
    return int(number) if number.is_integer() else number


def value_words(key: str, value: Any) -> str:
    """Return the value of a swept key in words that tell the key, too: "16 GPUs", "64 MB blocks", "pieces 4"."""
    if key == "fabric.gpus":
        return f"{sum(value) if value == value[:1] * 2 else '+'.join(map(str, value))} GPUs"
    if key in ("collective.chunk", "collective.size") and value is not None:
        return f"{units.format_size(value)} {'buffer' if key == 'collective.size' else 'blocks'}"
    if key == "conditions.wan_delay":
        return units.format_delay(value)
    if key == "fabric.wan":
        return _wan_name(value)
    if key in ("collective.kind", "collective.algorithm", "training.pipeline", *_PLAIN) and value is not None:
        return str(value)
    return key_words(key, value)


def cell_text(key: str, value: Any) -> str:
    """Return the text that tables show for a swept value that is neither a number nor text."""
    if key == "fabric.wan" and value.name:
        return str(value.name)
    if key == "program.role":
        return key_words(key, value)
    return value.words if isinstance(value, CongestionControl) else str(KEYS[key].kind.write(value))


def key_words(key: str, value: Any) -> str:
    """Return a key with its value in words: "wan rate 40 Gbit/s"; a table has the words of its entries."""
    kind = KEYS[key].kind
    if key in _TABLES:
        return JOINED.join(_entries(key, value, _MOST_SWEPT))
    table, _, last = key.rpartition(".")
    name = last.replace("_", " ")
    if table in ("te", "admission", "control", "class") and key != "control.knowledge":
        name = f"{'controller' if table == 'control' else table} {name}"
    if key == "collective.pieces" and value is None:
        return f"{name} chosen"
    written = None if value is None else kind.write(value)
    if isinstance(value, CongestionControl):
        written = value.words
    if key == "conditions.load":
        return "without load" if value is None else str(value.words)
    if key in _FILES and value is not None:
        return f"{name} {short_path(written)}"
    return f"{name} {_plain_words(written)}"


def _plain_words(written: object) -> str:
    """Return a value as it is written in words, without a comma and a blank, which separate the parts of labels:
    "40 Gbit/s", "2,3", "A=1 B=2"."""
    if isinstance(written, bool):
        return str(written).lower()
    if isinstance(written, Mapping):
        return " ".join(f"{name}={_plain_words(value)}" for name, value in written.items()) or "none"
    if isinstance(written, list | tuple):
        return ",".join(map(_plain_words, written)) or "none"
    return "default" if written is None else str(written)


def _entries(key: str, value: Any, most: int) -> list[str]:
    """Return the entries of a table in words; of more than `most` the first ones, with the number of all of them."""
    if not value:
        return [f"without {KEYS[key].attribute}"]
    words = [_entry_words(key, each) for each in value]
    number = f" ({_number_of(key, value)})" * (len(words) > most)
    return [*words[:most], *([f"and {len(words) - most:,} more{number}"] if number else [])]


def _entry_words(key: str, entry: Any) -> str:
    if key == JOBS:
        return words_of(entry.written())
    return str(entry.words)


def _number(key: str, value: Any) -> float | None:
    """Return the coordinate of a value: a number that is no name, the GPUs of all sites, the mean of a range of rates,
    or the age of knowledge."""
    if isinstance(value, Knowledge):
        return value.age
    if isinstance(value, bool) or key in SEEDS:
        return None
    if isinstance(value, int | float):
        return float(value)
    if isinstance(value, tuple) and value and all(type(item) is int for item in value):
        return float(sum(value))
    return None


def _further_words(config: Configuration, key: str, defaults: Configuration, *, all_classes: bool = False) -> str:
    """Return a key that the label's beginning does not state, in words, if it is swept or not at its default; classes
    that no job has are left out, unless `all_classes` are told."""
    swept = dict(config.at)
    is_swept, value = key in swept, swept.get(key, config.value(key))
    if key == "fault":
        value = tuple(fault for fault in value if not fault.is_traced)
    if key == "class" and not is_swept and not all_classes:
        value = _classes_of_jobs(config, value)
    if _is_told_before(config, key, value) or (not is_swept and _is_plain(key, value, defaults)):
        return ""
    if key == "collective.ring" and not is_swept and (_is_program(config) or not config.chooses_rings):
        return ""
    if key in _TABLES:
        return ", ".join(_entries(key, value, _MOST_SWEPT if is_swept else _MOST))
    if is_swept:
        chosen = f" ({config.collective.pieces})" if key == "collective.pieces" and value is None else ""
        return f"{key_words(key, value)}{chosen}"
    plain = {"fabric.grain": f"{value} grain", "fabric.rails": f"{value} rail{'s' * (value != 1)}"}
    return plain.get(key, str(value) if key in _PLAIN else key_words(key, value))


def _classes_of_jobs(config: Configuration, classes: tuple[ClassSpec, ...]) -> tuple[ClassSpec, ...]:
    """Return the classes that a job of this configuration has: without them the others change nothing, except for
    transfers, whose tunnels leave room for the shares of all classes."""
    if not config.jobs or any(job.kind == TRANSFER for job in config.jobs):
        return classes
    return tuple(one for one in classes if one.name in {job.traffic_class for job in config.jobs})


def _is_told_before(config: Configuration, key: str, value: Any) -> bool:
    """Return whether the label's beginning tells a key."""
    return key in _STATED or (key == JOBS and bool(value)) or _is_in_training(config, key)


def _is_plain(key: str, value: Any, defaults: Configuration) -> bool:
    """Return whether a key that is not swept needs no words: at its default, or where it has no effect on times. Delays
    of single links are among the WAN's words."""
    if key == "conditions.links" and all(one.rate_bps is None for one in value):
        return True
    return key in _WITHOUT_EFFECT or value == defaults.value(key) or (key, value) == ("collective.pieces", 1)


def _is_in_training(config: Configuration, key: str) -> bool:
    """Return whether the words of a training collective tell a key."""
    return key in _IN_TRAINING and TRAINING in config.kinds and not config.jobs


def _wan_words(config: Configuration) -> str:
    """Return the delays of the WAN's links: "10 us", "WAN 40 ms to 100 ms", or the name of a map."""
    wan, delay = config.fabric.wan, units.format_delay(config.conditions.wan_delay_s)
    if wan.km:
        return _wan_name(wan) + f", without lengths {delay}" * (None in wan.km)
    name = "" if wan == FabricSpec().wan else f"{_wan_name(wan)}, "
    if not wan.delays_s and not any(one.delay_s is not None for one in config.conditions.links):
        return name + delay
    try:
        fabric = build_fabric(config.fabric)
        delays = delays_s(fabric, config.conditions)
    except SpecError:
        return f"{name}delays by link, else {delay}"
    if _tells_delays(wan) and not any(one.delay_s is not None for one in config.conditions.links):
        return name.removesuffix(", ")
    of_wan = [float(delays[link.index]) for link in links_in_grain(fabric).all if link.kind == "wan"]
    least, most = (units.format_delay(end) for end in (min(of_wan), max(of_wan)))
    return f"{name}WAN {least if least == most else f'{least} to {most}'}"


def _wan_name(wan: WanSpec) -> str:
    if wan.name or wan.preset:
        return wan.name or str(wan.preset)
    number = "" if _is_told_whole(wan) else f" ({_number_of('fabric.wan', wan)})"
    return f"own WAN {_links_words(wan)}{number}"


def _is_told_whole(wan: WanSpec) -> bool:
    """Return whether the words of an own WAN's links leave nothing out, as those of a long table do."""
    is_plain = len(wan.links) <= _MOST_LINKS and not (wan.km or wan.back_km or wan.back_rates_bps)
    has_rates = not wan.rates_bps or (_tells_rates(wan) and all(rate % _ROUND_BPS == 0 for rate in wan.rates_bps))
    return is_plain and has_rates and (not wan.delays_s or _tells_delays(wan))


def _tells_rates(wan: WanSpec) -> bool:
    return 0 < len(wan.links) <= _MOST_LINKS and bool(wan.rates_bps) and all(wan.rates_bps) and not wan.back_rates_bps


def _tells_delays(wan: WanSpec) -> bool:
    return 0 < len(wan.links) <= _MOST_LINKS and bool(wan.delays_s) and None not in wan.delays_s


def _links_words(wan: WanSpec) -> str:
    """Return a few links with their capacities and delays, of which all have one: "s0b0-s1b0 s0b1-s1b1 40/10 Gbit/s
    5 ms"; those between the same nodes by how many they are, "s0b0-s1b0 (2 parallel links)"; of more links their
    number."""
    if len(wan.links) > _MOST_LINKS:
        return f"of {len(wan.links)} links"
    words = list[str]()
    for ends, cables in groupby(zip(wan.links, link_names.numbers(wan.links), strict=True), key=lambda one: one[0]):
        numbers = [number for _, number in cables]
        first, count = numbers[0], len(numbers)
        parallel = f" ({count} parallel links)" if count > 1 else " (parallel)" if first > 1 else ""
        words.append(f"{link_names.end('-'.join(ends), first)}{parallel}")
    if _tells_rates(wan):
        words.append(_quantities([f"{rate / 1e9:g} Gbit/s" for rate in wan.rates_bps]))
    if _tells_delays(wan):
        words.append(_quantities([units.format_delay(delay_s or 0.0) for delay_s in wan.delays_s]))
    return " ".join(words)


def _quantities(texts: Sequence[str]) -> str:
    """Return quantities with what they share told once: "25 Gbit/s" for all, "5/8/15 ms", or "500 us/1 ms"."""
    if len({*texts}) == 1:
        return texts[0]
    numbers, given = zip(*(text.split(" ", 1) for text in texts), strict=True)
    return f"{'/'.join(numbers)} {given[0]}" if len({*given}) == 1 else "/".join(texts)


def _number_of(key: str, value: Any) -> str:
    """Return a number that tells a long table from others: the first digits of the hash of what a file would have."""
    written = json.dumps(KEYS[key].kind.write(value), sort_keys=True, default=str)
    return f"#{hashlib.sha256(written.encode()).hexdigest()[:6]}"


def _is_program(config: Configuration) -> bool:
    return config.value("program.command") is not None or bool(config.value("program.role"))


def _collective_words(config: Configuration, defaults: Configuration) -> Iterator[str]:
    """Yield the collective in words: its kind, if it is not the default, and its size."""
    spec = config.collective
    if config.jobs:
        yield f"{len(config.jobs)} job{'s' * (len(config.jobs) != 1)}"
        yield from _entries(JOBS, config.jobs, _MOST_SWEPT if JOBS in dict(config.at) else _MOST)
    if _is_program(config) and not config.jobs:
        return  # it sends what it likes
    if spec.kind == TRAINING and not config.jobs:
        yield f"training {config.training.pipeline}"
        yield config.training.words(config.gpus)
        return
    if (spec.kind, spec.algorithm) != (defaults.collective.kind, defaults.collective.algorithm):
        yield f"{spec.kind} {spec.algorithm or ''}".strip()
    of_collective = not config.jobs and spec.kind not in SELF_SIZED_KINDS
    if of_collective:
        yield spec.words(config.gpus)
    elif any(job.has_default_size(spec) for job in config.jobs):  # each on its own GPUs
        of_buffer = spec.size_bytes is not None
        yield value_words(
            f"collective.{'size' if of_buffer else 'chunk'}", spec.size_bytes if of_buffer else spec.chunk_bytes
        )
