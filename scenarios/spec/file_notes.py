"""What was assumed of a scenario's file and of those that it names, and what was left out of them, in words."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from analysis.statistics.shared_link_notes import by_sentence
from scenarios.policies.conditions import cut_off
from scenarios.spec.faults import MAX_ATTEMPTS, Fault
from scenarios.spec.scenario import Scenario
from scenarios.spec.trace_times import trace_time
from topologies.conditions.link_overrides import resolved
from topologies.conditions.sampler import load_of, sampler
from topologies.errors import list_first
from topologies.fabric.fabric import build_fabric
from topologies.text_files import short_path
from topologies.units import format_delay

_MAX_NAMED = 4


def notes_on(configs: Sequence[Scenario]) -> tuple[str, ...]:
    """Return each sentence on what was assumed of the files of configurations or left out, with the labels of those
    that it is about unless it is about all; raises SpecError without the files."""
    return by_sentence([(config.label, list(_notes(config))) for config in configs])


def _notes(config: Scenario) -> Iterator[str]:
    yield from config.notes
    if not config.program.is_given:  # a program runs in place of the scenario's collective
        yield from config.workload.unsprayed.schedule.notes
    yield from _map_notes(config)
    trace = config.trace
    if trace is not None:
        yield from (f"the trace {short_path(trace.path)}: {note}" for note in trace.notes)
        yield from _outage_notes(config, [fault for fault in config.faults if fault.is_traced])
    yield from _cut_notes(config)
    if config.conditions.load is not None:
        load = load_of(sampler(build_fabric(config.fabric), config.conditions, seed=config.run.seed))
        yield from (
            (f"the load {config.conditions.load.matrices.partition(':')[0]}: {note}" for note in load.notes)
            if load
            else ()
        )


def _map_notes(config: Scenario) -> Iterator[str]:
    yield from config.fabric.wan.notes
    fabric = build_fabric(config.fabric)
    yield from fabric.wan.notes
    set_apart = {
        fabric.links[index].name
        for one, indices in (resolved(fabric, config.conditions.links) if fabric.spec.grain == "logical" else ())
        for index in indices
        if one.delay_s is not None
    }
    lacking = [f"{a}-{b}" for a, b in fabric.wan.unmeasured if not {f"{a}>{b}", f"{b}>{a}"} <= set_apart]
    if lacking:
        delay = format_delay(config.conditions.wan_delay_s)
        one = len(lacking) == 1
        which = f"{len(lacking)} link{'' if one else 's'} ({list_first(lacking, _MAX_NAMED)}) of the map"
        yield f"{which} {'has' if one else 'have'} no length: the delay is that of conditions.wan_delay, {delay}"


def _outage_notes(config: Scenario, outages: list[Fault]) -> Iterator[str]:
    if not outages:
        return
    words = [
        f"{one.target} from collective {one.collective:,}{trace_time(config, one.collective)} "
        f"{'to the end' if one.lasts is None else f'for {one.lasts:,}'}"
        for one in outages
    ]
    count = len(outages)
    yield f"the trace has {count:,} outage{'s' * (count != 1)}: {list_first(words, _MAX_NAMED)}"


def _cut_notes(config: Scenario) -> Iterator[str]:
    """Yield from which collective on faults leave GPUs without a path for longer than it is begun again. Of faults that
    last for a time, the number of collectives is not known before the run."""
    if config.program.is_given:
        return
    known = replace(config, faults=tuple(one for one in config.faults if not one.is_timed))
    if cut := cut_off(known) if known.faults else ():
        yield (
            f"in collective {cut[0]:,} no path joins all GPUs, also after it has been begun {MAX_ATTEMPTS} times: a "
            f"mode whose flows need one ends there, and the collectives before it are kept"
        )
