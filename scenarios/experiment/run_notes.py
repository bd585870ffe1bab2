"""What a run tells before it begins: what its modes choose and share, and what the timing model leaves out."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain

from analysis.statistics.rates import Range, range_words
from analysis.statistics.shared_link_notes import (
    choice_notes,
    delay_notes,
    free_change_notes,
    greedy_notes,
    notes,
    searched_notes,
    unmodelled_notes,
)
from analysis.statistics.unmodelled_keys import INSTEAD
from controller.routing.wan_path_choice import MAX_COMBINATIONS
from hosts.embedding.ring import MAX_EXACT_GPUS
from scenarios.engines.prediction import ring_gap
from scenarios.policies.knowledge import PORTS
from scenarios.policies.policy import ALWAYS
from scenarios.spec import classes, transfer_class
from scenarios.spec.keys import KEYS
from scenarios.spec.scenario import DEFAULTS, Scenario
from topologies.conditions.sampler import ranges_bps
from topologies.errors import list_first
from topologies.fabric.fabric import build_fabric
from topologies.fabric.ports import links_in_grain

_MOST_FAULTS = 3  # that a note names
_MOST_SIZES = 4
_MAX_SEARCHED, _DRAWS = 4, 2  # rings are compared with a bound in this many configurations, and draws of each


def notes_of_run(configs: Sequence[Scenario]) -> Iterator[str]:
    """Yield notes on what the modes will do, and on what the model leaves out, before they run."""
    shared = [{mode: one.shared_links(mode) for mode in one.run.modes} for one in configs]
    served = [any(job.traffic_class is not None for job in one.jobs) for one in configs]
    yield from notes(
        (one.label, links, has_classes) for one, links, has_classes in zip(configs, shared, served, strict=True)
    )
    greedy = [(one.label, [mode for mode in one.run.modes if one.routes_greedily(mode)]) for one in configs]
    yield from greedy_notes(greedy, most=MAX_COMBINATIONS)
    yield from delay_notes(
        (one.label, {mode: one.messages_on_a_choice_of_delays(mode) for mode in one.run.modes}) for one in configs
    )
    yield from choice_notes(
        [(one.label, {mode: one.choices_of_one(mode) for mode in one.run.modes}) for one in configs]
    )
    yield from free_change_notes((one.label, *_free_to_reroute(one)) for one in configs)
    yield from _uplink_notes(configs)
    yield from _ring_search_notes(configs)
    yield from _tunnel_notes(configs)
    if any(one.conditions.every_s is not None and one.control.counted for one in configs):
        yield "conditions stand still during the reconfiguration before a collective, whose time is counted"
    if any(map(_has_idle_delay, configs)):
        yield "control.delay: no collective takes longer, as control.counted is false; reconfigurations do"
    if any(one.run.is_real and one.control_delays_s for one in configs):
        yield "on the wall clock the waits for ring and paths include this machine's own delays beside control.delay"
    yield from _schedule_search_notes(configs)
    yield from unmodelled_notes((one.label, _unmodelled_keys(one)) for one in configs)
    yield from _slow_start_notes(configs)
    yield from dict.fromkeys(chain.from_iterable(map(_idle_shares, configs)))
    yield from admission_notes(configs)


def _uplink_notes(configs: Sequence[Scenario]) -> Iterator[str]:
    """Yield that a leaf's ports grow with its GPUs where these are swept with a ratio of oversubscription: a flow takes
    one of them, and is then faster with more GPUs."""
    ports: dict[tuple[float, ...], dict[int, Range]] = {}
    for config in configs:
        if config.fabric.oversubscription and config.conditions.sampler != "trace":
            fabric = build_fabric(config.fabric)
            lows, highs = ranges_bps(fabric, config.conditions).tolist()
            kinds = [link.kind for link in links_in_grain(fabric).all]
            if "leaf_spine" in kinds:
                at = kinds.index("leaf_spine")
                of_gpus = ports.setdefault(tuple(config.fabric.oversubscription), {})
                of_gpus[len(fabric.gpus)] = round(lows[at]), round(highs[at])
    told = [
        f"{', '.join(f'{ratio:g}:1' for ratio in ratios)}: "
        + list_first([f"{range_words([bps])} with {gpus:,} GPUs" for gpus, bps in sorted(of_gpus.items())], _MOST_SIZES)
        for ratios, of_gpus in ports.items()
        if len({*of_gpus.values()}) > 1
    ]
    if told:
        yield (
            "with a ratio of oversubscription a leaf's port to a spine grows with the leaf's GPUs, so that a flow, "
            f"which takes one such port, may be faster with more GPUs (fabric.oversubscription {'; '.join(told)})"
        )


def _slow_start_notes(configs: Sequence[Scenario]) -> Iterator[str]:
    """Yield which measured collectives begin in slow start: a mean of few tells of that more than of an algorithm."""
    begin = "with transport.line_rate = false connections begin in slow start, and the emulation measures"
    once = f"{begin} that in collective 0 and the first of each placement: means of few collectives are mostly that"
    always = f"{begin} that in every collective, as fabric.buffer gives each new connections"
    buffers = [one.transport.buffer_bytes for one in configs if not one.transport.line_rate]
    yield from dict.fromkeys(once if each is None else always for each in buffers)


def _has_idle_delay(config: Scenario) -> bool:
    """Return whether the delay of the controller makes no collective longer: neither do recoveries from faults, nor is
    what a mode knows older by it."""
    learns = any(config.mode(mode).knowledge.kind == PORTS for mode in config.run.modes)
    return bool(config.control_delays_s) and not (config.control.counted or config.faults or learns)


def _idle_shares(config: Scenario) -> list[str]:
    """Return a sentence if the class that is served first has a share; that is an unused key unless it is swept."""
    first = next(iter(classes.in_order(config.classes)), None)
    if first is None or not first.share or config.admits:
        return []
    return [f"the share of a class has no effect where {classes.served_first(first.name)}"]


def _unmodelled_keys(config: Scenario) -> list[str]:
    """Return the keys that the timing model does not include, and that are swept or not at their defaults."""
    swept = dict(config.at)
    keys = [key for key in INSTEAD if key in KEYS and (key in swept or config.value(key) != DEFAULTS.value(key))]
    return keys + ["class.congestion_control"] * any(one.congestion_control is not None for one in config.classes)


def _free_to_reroute(config: Scenario) -> tuple[list[str], list[str]]:
    """Return the modes that decide by themselves when to re-route, and those that always do; none if that costs."""
    modes = [] if config.control.counted else [(mode, config.mode(mode).reroute) for mode in config.run.modes]
    return [name for name, when in modes if not when.is_periodic], [name for name, when in modes if when == ALWAYS]


def _tunnel_notes(configs: Sequence[Scenario]) -> Iterator[str]:
    """Yield a note for the modes that would choose paths if there were more than the tunnels of admitted transfers."""
    idle = dict.fromkeys(
        mode for one in configs if one.has_tunnels_alone for mode in one.run.modes if one.modes[mode].reroutes
    )
    if idle:
        yield f"{' and '.join(idle)} choose no WAN path where all jobs are admitted transfers: they keep their tunnels"


def admission_notes(configs: Sequence[Scenario]) -> Iterator[str]:
    """Yield the class of transfers that has been added, and the outcomes of each configuration's transfers, by label;
    equal sentences appear once."""
    added = (transfer_class.told(one.classes, beside_program=one.program.is_given) for one in configs)
    yield from dict.fromkeys(filter(None, added))
    yield from dict.fromkeys(chain.from_iterable(map(_beyond_promises, configs)))
    labels_of: dict[tuple[str, ...], list[str]] = {}
    for config in configs:
        sentences = tuple(transfer.sentence for transfer in config.transfers)
        labels_of.setdefault(sentences, []).append(config.label)
    for sentences, labels in labels_of.items():
        if len(labels_of) > 1 and sentences:
            yield f"{list_first(labels, 3, separator='; ')}:"
        yield from sentences


def _beyond_promises(config: Scenario) -> list[str]:
    """Return a sentence if a configuration has faults that its promises do not take into account."""
    beyond = [one.words for one in config.faults if config.admits and not config.is_promised_for(one)]
    if not beyond:
        return []
    return [
        f"transfers are promised without {list_first(beyond, _MOST_FAULTS)}; the results tell which promises were kept "
        "nevertheless"
    ]


def _schedule_search_notes(configs: Sequence[Scenario]) -> Iterator[str]:
    """Yield the note on searches for best schedules, if there are any."""
    counts = [one.collective.count for one in configs if one.searches_schedules]
    if counts:
        within = f"run.search = {configs[0].run.search:g}"
        yield f"searching for up to {max(counts)} best schedules per configuration and engine, each with {within}"


def _ring_search_notes(configs: Sequence[Scenario]) -> tuple[str, ...]:
    """Return notes on how far searched rings are from a bound, for the first configurations that search for rings."""
    gaps: list[tuple[str, str, dict[str, float]]] = []
    for config in configs:
        modes = [mode for mode in config.run.modes if config.searches_rings(mode)]
        if modes and len(gaps) < _MAX_SEARCHED:
            by_ring = defaultdict[str, dict[str, float]](dict)
            for mode in modes:
                by_ring[config.mode(mode).ring or config.collective.ring][mode] = ring_gap(config, mode, _DRAWS)
            gaps += [(config.label, ring, by_mode) for ring, by_mode in by_ring.items()]
    return searched_notes(gaps, most=MAX_EXACT_GPUS, count=_DRAWS)
