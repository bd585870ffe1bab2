"""What a run tells in words at its end: the answer, and the paragraphs beside the table of its points."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from analysis.results.paragraphs import About, Paragraph, those_about
from analysis.statistics.answer import answer, engines_told, winners
from analysis.statistics.block_notes import few_blocks_sentence
from analysis.statistics.bound_words import bound_words
from analysis.statistics.budget_words import Kept, budget_sentence
from analysis.statistics.claims import (
    ABOUT,
    PAPER_JOINT_GAIN,
    PAPER_ORDER,
    claims,
    is_paper_configuration,
)
from analysis.statistics.contests import MODE, Place, contests_of, differing_words
from analysis.statistics.declared_faults import (
    DOWN,
    still_in_force_sentence,
    unmodelled_sentence,
    until_end_sentence,
)
from analysis.statistics.fault_costs import (
    PointCosts,
    attempts_sentence,
    cost_words,
    ends_of,
    fault_costs_sentence,
    predicted_attempts_sentence,
)
from analysis.statistics.fidelity import Fidelity
from analysis.statistics.gain_times import gain_times_sentence, worst_sentence
from analysis.statistics.grain_notes import grain_sentence, most_at_a_time
from analysis.statistics.intervals import Series, gain, reasons
from analysis.statistics.job_times import series_of_jobs
from analysis.statistics.jobs_in_words import amount_of, classes_sentence, measured_as
from analysis.statistics.orders import SIGNS, orders_of
from analysis.statistics.pooled_means import pooled_lines
from analysis.statistics.rates import drawn_sentence, wan_links_sentence
from analysis.statistics.without_faults import Means, without_faults_sentence
from scenarios.experiment.ecmp import EcmpGain, lines_of
from scenarios.experiment.fault_results import heading
from scenarios.experiment.point_results import (
    ConfigResult,
    JobResult,
    PointResult,
    TrainingResult,
    intervals_of,
    point_times,
    pooled_faults,
    settings_of,
    times_by_engine,
    transfer_fields,
)
from scenarios.experiment.results_table import bounds_of, common_of, no_time_line, share, table_of
from scenarios.experiment.ring_notes import slower_ring_sentence
from scenarios.spec.admission import ADMITTING_ROUTING, UNADMITTED
from scenarios.spec.paces import overlaps
from scenarios.spec.scenario import Scenario, plain_values
from scenarios.spec.trace_times import trace_time
from scenarios.text_table import aligned
from topologies.conditions.trace import Trace
from topologies.errors import SpecError, list_all, list_first
from topologies.fabric.fabric import build_fabric
from topologies.units import format_delay

_MOST_MISSED = 4  # promises that are named
_TIMES = 2  # from which on a share is told as a multiple
_NOTICED_S, _NOTICED_SHARE = 0.1, 0.01  # of all collectives' time: connections that take longer to open are told


def as_sentence(results: Sequence[ConfigResult]) -> str:
    """Return the answer of a run in one sentence: what is fastest, by how much, and how sure that is. Others tell when
    it gains if conditions are recorded, which rates are random, which faults predicted times are without, which
    attempts measured ones are those of, and whether collectives by the clock overlap."""
    times = times_by_engine(results)
    jobs = {
        (result.engine, Place(result.index, point.mode)): series_of_jobs(
            result.times[point.mode], {job.name: job.completion_s for job in point.jobs}
        )
        for result in results
        for point in result.points
    }
    configs = {result.index: result.config for result in results}
    drawn = drawn_sentence((build_fabric(config.fabric), config.conditions) for config in configs.values())
    modelled = [plain_values(result.config)["fault"] for result in results if result.engine == "model"]
    settings = settings_of(results)
    told = _of_engines(results, engines_told(settings, times))
    grain = grain_sentence(
        winners(settings, times),
        lambda index: configs[index].workload.algorithm,
        lambda index: _most_at_a_time(configs[index]),
    )
    conditions = {index: config.conditions for index, config in configs.items()}
    in_gaps = {index: _in_gaps(one) for index, one in configs.items()}
    begins_ns = {index: one.begins_ns for index, config in configs.items() if (one := _trace_of(config)) is not None}
    when = gain_times_sentence(settings, times, conditions, in_gaps, begins_ns)
    attempts = attempts_sentence(fault for result in results for point in result.points for fault in point.faults)
    struck = pooled_faults(results)
    ends = ends_of(fault for one in results if one.engine == "model" for point in one.points for fault in point.faults)
    predicted = predicted_attempts_sentence(
        (one.mode, [fault.results[0] for fault in one.faults]) for one in struck if one.engine == "model"
    )
    first = answer(settings, times, jobs)
    tables = [plain_values(config) for config in configs.values()]
    said = [
        first,
        classes_sentence([(one["job"] or (), one["class"]) for one in tables], first),
        _without_faults(results, told),
        fault_costs_sentence(struck),
        change_costs_sentence(told),
        _budgets(told),
        slower_ring_sentence(told),
        promises_sentence(results),
        when,
        worst_sentence(settings, times, conditions, begins_ns),
        drawn,
        grain,
        unmodelled_sentence(modelled, ends),
        until_end_sentence(modelled, ends),
        _still_in_force(results, struck),
        attempts,
        predicted,
        *(f"{note[0].upper()}{note[1:]}." for note in overlaps([*configs.values()])),
    ]
    return " ".join(filter(None, said))


def _still_in_force(results: Sequence[ConfigResult], struck: Sequence[PointCosts]) -> str:
    """Return which faults were to end and have not at the end of the run, and in which modes if not in all."""
    modes = dict[tuple[int, str], dict[str, bool]]()
    for point in struck:
        for fault in point.faults:
            here = modes.setdefault((fault.results[0].number, fault.results[0].what), {})
            here[point.mode] = here.get(point.mode, False) or bool(fault.in_force)
    lasting = {key: [mode for mode, lasts in here.items() if lasts] for key, here in modes.items()}
    told = {key: some if len(some) < len(modes[key]) else [] for key, some in lasting.items() if some}
    return still_in_force_sentence((plain_values(result.config)["fault"] for result in results), told)


def _of_engines(results: Sequence[ConfigResult], engines: Mapping[Place, str]) -> list[ConfigResult]:
    """Return the results with the points alone whose engine is the one that the answer tells of them."""
    own = (
        replace(
            one, points=tuple(each for each in one.points if engines.get(Place(one.index, each.mode)) == one.engine)
        )
        for one in results
    )
    return [one for one in own if one.points]


def _budgets(results: Sequence[ConfigResult]) -> str:
    """Return where means keep the budget of a collective, in points of which each has one engine; "" without a
    budget."""
    at = {one.index: one.at for one in settings_of(results)}
    return budget_sentence(
        [
            Kept(
                at=at[result.index],
                mode=point.mode,
                budget_s=point.budget.budget_s,
                is_kept=point.budget.spare_s >= 0,
                fitting=point.budget.fitting,
                collectives=point.summary.collectives,
            )
            for result in results
            for point in result.points
            if point.budget is not None
        ]
    )


def _without_faults(results: Sequence[ConfigResult], told: Sequence[ConfigResult]) -> str:
    """Return what would be fastest without the faults, by the times of the engine that most of the answer tells of,
    those in `told`; by the other one's where costs are not all known."""
    engines = {one.engine: 0 for one in (*told, *results)}
    for result in told:
        engines[result.engine] += len(result.points)
    differ = len(engines) > 1 and len({point.summary.collectives for one in results for point in one.points}) > 1
    for engine in sorted(engines, key=lambda one: engines[one], reverse=True):
        of_engine = [result for result in results if result.engine == engine]
        of = ("predicted" if engine == "model" else "measured") if differ else ""
        if said := without_faults_sentence(settings_of(of_engine), _means(of_engine), of):
            return said
    return ""


def _means(results: Sequence[ConfigResult]) -> dict[Place, Means]:
    """Return the means with and without faults of the points of one engine for which both are known."""
    found = {}
    for result in results:
        for point in result.points:
            mean_s = point.summary.mean_s.value
            without_s = point.mean_without_s if point.faults else mean_s
            lost = sum(fault.collectives_lost for fault in point.faults)
            if without_s is not None:
                found[Place(result.index, point.mode)] = Means(mean_s, without_s, point.summary.collectives, lost)
    return found


def promises_sentence(results: Sequence[ConfigResult]) -> str:
    """Return how many of the promises to transfers are kept in all rounds, measured where that was done, and which are
    missed; of transfers that were not admitted, how many are in time. "" without transfers."""
    measured = {(one.index, point.mode) for one in results if one.engine != "model" for point in one.points}
    told: dict[bool, list[tuple[bool, str]]] = {}
    refused = dict[str, None]()
    modes = {point.mode for one in results for point in one.points}
    labels = [one.config.label for one in results]
    told_apart = differing_words(labels) if len({*labels}) > 1 else [""] * len(labels)
    for label, result in zip(told_apart, results, strict=True):
        for point in result.points:
            if result.engine == "model" and (result.index, point.mode) in measured:
                continue
            where = ", ".join(filter(None, [label, point.mode * (len(modes) > 1)]))
            for one in transfer_fields(result.config, point).get("transfers", ()):
                name = f"{one['job']}{where and f' ({where})'}"
                if "kept" in one:
                    told.setdefault(one["outcome"] != UNADMITTED, []).append((bool(one["kept"]), name))
                else:
                    refused[name] = None
    parts = list[str]()
    for is_promise, outcomes in sorted(told.items(), reverse=True):
        missed = [name for is_kept, name in outcomes if not is_kept]
        what = f"promise{'s' * (len(outcomes) > 1)} kept" if is_promise else "in time"
        late = f"; {'missed' if is_promise else 'late'}: {list_first(missed, _MOST_MISSED)}" if missed else ""
        parts.append(f"{len(outcomes) - len(missed):,} of {len(outcomes):,} {what}{late}")
    if refused:
        parts.append(f"refused: {list_first([*refused], _MOST_MISSED)}")
    if False in told:
        parts.append(f'none is promised, as only fabric.routing = "{ADMITTING_ROUTING}" admits transfers')
    how = " (measured)" if measured else " (timing model)"
    return f"Of the transfers{how}: {'; '.join(parts)}." if parts else ""


def _in_gaps(config: Scenario) -> set[int]:
    """Return the collectives in gaps of the trace, if there is one."""
    trace = _trace_of(config)
    return set() if trace is None else trace.in_gaps_of(config.collective.count)


def _trace_of(config: Scenario) -> Trace | None:
    """Return the trace of a configuration, if there is one."""
    try:
        return config.trace
    except SpecError:  # its file has gone since the run began, which has its results
        return None


def _most_at_a_time(config: Scenario) -> int:
    if config.fabric.grain == "physical":
        return 0
    schedule = config.workload.schedule
    transfers = ((one.flow, one.after) for one in schedule.transfers)
    return most_at_a_time([*zip(*schedule.ends, strict=True)], transfers, config.fabric.gpus_per_site)


def paragraphs_of(
    results: Sequence[ConfigResult],
    run_fidelity: Fidelity | None = None,
    ecmp: Sequence[EcmpGain] = (),
    lacking: Iterable[str] = (),
) -> list[Paragraph]:
    """Return what a run tells at its end beside the table, in the order of the terminal: the answer, the fidelity, what
    the table's cells mean, and each configuration's order of the modes, with the paper's claims for its own. `lacking`
    are sentences on what failed or was not measured."""
    answer_lines = (as_sentence(results),) if results else ()
    paragraphs = [
        Paragraph(about=About.ANSWER, lines=answer_lines),
        Paragraph(about=About.FIDELITY, lines=tuple(str(run_fidelity).splitlines() if run_fidelity else ())),
        Paragraph(about=About.EMPTY, lines=tuple(_empty_lines(results))),
        Paragraph(about=About.BLOCKS, lines=tuple(filter(None, [few_blocks_sentence(intervals_of(results))]))),
        Paragraph(
            about=About.POOLED,
            heading="means over all seeds, of which the table has each by itself, and gains over the baseline",
            lines=tuple(pooled_lines(settings_of(results), times_by_engine(results))),
        ),
        Paragraph(about=About.BOUNDS, lines=tuple(_bound_lines(results))),
        Paragraph(about=About.OPENING, lines=tuple(filter(None, [opening_sentence(results)]))),
        _choices(results),
        _jobs(results),
        _transfers(results),
        _faults(results),
        _training_iterations(results),
        *_order_paragraphs(results),
        Paragraph(about=About.ECMP, lines=tuple(lines_of(ecmp))),
        Paragraph(about=About.LACKING, lines=tuple(lacking)),
    ]
    labels = {result.config.label for result in results}
    told = next(iter(labels)) if len(labels) == 1 and common_of(results) else ""  # above the table
    return [_without_label(one, told) for one in paragraphs if one.lines]


def _without_label(paragraph: Paragraph, label: str) -> Paragraph:
    """Return a paragraph below the table without the label of the only configuration, which stands above it."""
    if not label or paragraph.about in (About.ANSWER, About.FIDELITY, About.LACKING):
        return paragraph
    lines = (line.replace(f", {label}", "").replace(f"{label}, ", "") for line in paragraph.lines)
    return replace(paragraph, lines=tuple(lines))


def as_text(results: Sequence[ConfigResult], paragraphs: Sequence[Paragraph]) -> str:
    """Return the table of the points among the paragraphs of `paragraphs_of`, as the terminal prints them."""
    opening = (About.ANSWER, About.FIDELITY)
    above = [str(one) for one in those_about(paragraphs, *opening)]
    below = [str(one) for one in paragraphs if one.about not in (*opening, About.LACKING)]
    common = [f"all rows: {common_of(results)}"] if common_of(results) else []
    table = "\n".join([*common, *aligned(table_of(results)[0], range(3))]) if results else "no point was finished"
    return "\n\n".join([*above, table, *below] if results else [table, *above])


def _bound_lines(results: Sequence[ConfigResult]) -> Iterator[str]:
    """Yield what the lower bounds are, if there are any, and over how many WAN links these may send."""
    configs = [result.config for result in results]
    links = wan_links_sentence((build_fabric(config.fabric), config.conditions) for config in configs)
    is_single = all(config.fabric.routing == "single" for config in configs)
    bounds = bound_words(
        bounds_of((result, point) for result in results for point in result.points).values(),
        faults=any(config.faults for config in configs),
        jobs=any(config.jobs for config in configs),
    )
    taken = "base takes one path between two border routers" if is_single else ""
    used = ", ".join(filter(None, ["the bound may use all of them" * bool(bounds and taken), taken]))
    yield from filter(None, [bounds, f"{links}{f': {used}' * bool(used)}" if links else ""])


def _empty_lines(results: Sequence[ConfigResult]) -> Iterator[str]:
    """Yield why there are no intervals, with the modes that have none for this reason, and why other cells are
    empty."""
    yield from (f"[-]: {each}" for each in reasons(intervals_of(results)))
    yield from table_of(results)[1]
    yield from filter(None, [no_time_line(results)])


def opening_sentence(results: Sequence[ConfigResult]) -> str:
    """Return how long all connections took to open before collective 0 where that is longest, if it took more than 1 %
    of the time of all collectives, or 100 ms."""
    found = [
        (point.changes.first_s, point.changes.first_s / point.summary.total_s.value, result, point.mode)
        for result in results
        for point in result.points
        if result.engine != "model" and point.changes is not None and point.changes.first_s is not None
    ]
    told = [one for one in found if one[0] > _NOTICED_S or one[1] > _NOTICED_SHARE]
    if not told:
        return ""
    most_s, share_of_all, result, mode = max(told, key=lambda one: one[0])
    several = len(found) > 1
    where = f" at most ({', '.join([result.config.label] * (len(results) > 1) + [mode])})" if several else ""
    times = f"{share_of_all:,.0f} times" if share_of_all >= _TIMES else f"{100 * share_of_all:,.1f} % of"
    counted = "which is in the time of collective 0" if result.config.control.counted else "which is in no time above"
    return (
        f"before collective 0 connections were opened, rank by rank, and switches got their rules: "
        f"{format_delay(float(f'{most_s:.4g}'))} of virtual time{where}, {times} that of all "
        f"collectives there, {counted}"
    )


def change_costs_sentence(results: Sequence[ConfigResult]) -> str:
    """Return how long a change of paths alone takes, and one of the ring, on average in each mode of these results, of
    the engine that the answer tells of; "" for several configurations or engines, and where changes take no time or are
    not counted."""
    if len(results) != 1 or not results[0].config.control.counted:
        return ""
    points = [(point.mode, point.changes) for point in results[0].points if point.changes is not None]
    paths = [(mode, one.alone, one.alone_s) for mode, one in points if one.alone_s is not None]
    rings = [(mode, one.rings, one.rings_s) for mode, one in points if one.rings_s is not None]
    told = [
        f"{what} takes {_by_mode(each)}"
        for what, each in (("a change of paths alone", paths), ("one of the ring, with its connections,", rings))
        if any(time_s > 0 for *_, time_s in each)
    ]
    text = "; ".join(told)
    which = "both are" if len(told) > 1 else "it is"
    return f"{text[0].upper()}{text[1:]}; {which} in these times." if text else ""


def _by_mode(changes: Sequence[tuple[str, int, float]]) -> str:
    """Return mean times of changes, those of the same time together, and how often each mode made them."""
    alike: dict[str, list[str]] = {}
    for mode, count, time_s in changes:
        often = "once" if count == 1 else f"{count:,} times"
        alike.setdefault(format_delay(float(f"{time_s:.4g}")) if time_s else "no time", []).append(f"{mode} {often}")
    return ", ".join(f"{time} ({', '.join(modes)})" for time, modes in alike.items())


def _choices(results: Sequence[ConfigResult]) -> Paragraph:
    """Return how often modes have chosen, if there are any that decide by themselves."""
    lines = []
    for result in results:
        for point in result.points:
            if point.choices is not None:
                what = point.choices.words(point.summary.collectives - (0 in result.config.collective.numbers))
                told = "; ".join(filter(None, [what, point.stopped]))
                lines.append(f"{result.engine}, {result.config.label}, {point.mode}: {told}")
    heading = "before how many collectives after the first one modes re-routed and re-embedded"
    return Paragraph(about=About.CHOICES, heading=heading, lines=tuple(lines))


def _jobs(results: Sequence[ConfigResult]) -> Paragraph:
    """Return the mean times of all jobs, measured and predicted, unless each is its whole round."""
    lines, is_told = [], any(_tells_more(point) for result in results for point in result.points)
    for result in results if is_told else ():
        measures = {job.name: measured_as(job.written()) or amount_of(job.written()) for job in result.config.jobs}
        for point in (one for one in result.points if one.jobs):
            jobs = (
                f"{job.name}{' (background)' * job.background}"
                + f" ({measures[job.name]})" * bool(measures[job.name])
                + f" {job.mean_s * 1e3:,.3f} ms{_beside(job, result.engine)}"
                for job in point.jobs
            )
            lines.append(f"{result.engine}, {result.config.label}, {point.mode}: {', '.join(jobs)}")
    others = any(measured_as(job.written()) for result in results for job in result.config.jobs)
    what = f"the jobs' mean completion times, each from the job's start{', or what brackets say' * others}"
    return Paragraph(about=About.JOBS, heading=what, lines=tuple(lines))


def _beside(job: JobResult, engine: str) -> str:
    """Return what is told beside the time of a job, in brackets: its prediction, and of requests two numbers more."""
    told = [f"predicted {job.mean_predicted_s * 1e3:,.3f}"] * (engine != "model")
    told += [] if job.serving is None else [job.serving.words]
    return f" ({'; '.join(told)})" if told else ""


def _tells_more(point: PointResult) -> bool:
    """Return whether the jobs' times tell more than the round's: those of a single job from its beginning on do not."""
    return len(point.jobs) > 1 or any(not math.isclose(job.mean_s, point.summary.mean_s.value) for job in point.jobs)


def _transfers(results: Sequence[ConfigResult]) -> Paragraph:
    """Return the outcome of every transfer, if there are any."""
    lines = []
    for result in results:
        for point in result.points if result.config.transfers else ():
            lines.append(f"{result.engine}, {result.config.label}, {point.mode}:")
            for transfer in transfer_fields(result.config, point)["transfers"]:
                lines.append(f"  {transfer['sentence']}{_delivery(transfer)}")
    heading = "transfers, and when the latest of all rounds was complete"
    return Paragraph(about=About.TRANSFERS, heading=heading, lines=tuple(lines))


def _faults(results: Sequence[ConfigResult]) -> Paragraph:
    """Return the outcome of every fault, if there are any."""
    struck, lines = pooled_faults(results), list[str]()
    configs = {result.index: result.config for result in results}
    for (engine, label), points in groupby(struck, lambda one: (one.engine, one.label)):
        lines.append(f"{engine}, {label}:")
        by_fault: dict[tuple[int, str], list[str]] = {}
        for one in points:
            for fault in one.faults:
                when = trace_time(configs[one.settings[0]], fault.results[0].at_collective).removesuffix(",")
                told = by_fault.setdefault((fault.results[0].number, f"{fault.what}{when}"), [])
                told.append(f"    {one.mode}: {fault.outcome}")
        for (number, what), told in by_fault.items():
            lines += [f"  {f'fault {number}' if number else 'no declared fault'}, {what}", *told]
    costs = cost_words(one for each in struck for fault in each.faults for one in fault.results)
    lines += [f"({words})" for words in (*around_failures(results), *costs)]
    indices = {index for one in struck for index in one.settings}
    return Paragraph(
        about=About.FAULTS,
        heading=heading(result.config for result in results if result.index in indices),
        lines=tuple(lines),
    )


def around_failures(results: Sequence[ConfigResult]) -> Iterator[str]:
    """Yield that modes which choose no paths take others around a failed link, if there are any: where there were none
    attempts have failed."""
    struck = [
        (result.config.mode(point.mode), point)
        for result in results
        for point in result.points
        if any(fault.kind == DOWN and not fault.collectives_lost for fault in point.faults)  # else there were none
    ]
    keeping = list(dict.fromkeys(point.mode for mode, point in struck if not mode.reroutes))
    if not keeping:
        return
    changed = dict.fromkeys(
        point.mode
        for mode, point in struck
        if not mode.reroutes and not mode.reembeds and point.changes is not None and point.changes.count
    )
    also = f"also in {list_all(keeping)}, {'which choose' if len(keeping) > 1 else 'which chooses'} no paths otherwise"
    are = f"; under reconfiguration, these are all changes of {list_all([*changed])}" if changed else ""
    yield f"around a failed link other paths are taken in every mode, {also}{are}"


def _delivery(transfer: Mapping[str, Any]) -> str:
    """Describe when a transfer was complete and whether that was in time; empty if it was not sent."""
    if "there_s" not in transfer:
        return ""
    complete = f"; complete at {transfer['there_s'] * 1e3:,.3f} ms"
    if lost := transfer.get("rounds_lost"):
        return f"{complete} of a round, missed in {lost} that a fault ended, which began anew"
    if not transfer["kept"]:
        return f"{complete}, due at {transfer['due_s'] * 1e3:,.3f} ms"
    return f"{complete}, {'in time' if transfer['outcome'] == UNADMITTED else 'kept'}"


def _training_iterations(results: Sequence[ConfigResult]) -> Paragraph:
    """Return a description of the training iterations, if there are any."""
    points = [
        (f"{result.engine}, {result.config.label}, {point.mode}{name}", training, result.config.training.every)
        for result in results
        for point in result.points
        for name, training in (("", point.training), *((f", {job.name}", job.training) for job in point.jobs))
        if training is not None
    ]
    lines = []
    for which, training, every in points:
        held = " ".join(f"{count:g}" for count in training.in_flight)
        more = f", {max(training.more)} more before a cut than in 1F1B" * any(training.more)
        room = "" if training.room is None else f" of {training.room:g}"
        of_round = f" on average in a round of {every:,}" * (every > 1)
        time, bubble = f"{training.iteration_s * 1e3:,.3f} ms{of_round}", f"bubble {training.bubble_ratio:.2%}"
        in_flight = f"micro-batches in flight by stage: {held}{room}{more}"
        lines.append(f"{which}: {time}, {bubble}, {_exposed(training)}; {in_flight}")
    what = "training iterations: time, share in which GPUs do not compute, time that communication adds"
    return Paragraph(about=About.TRAINING, heading=what, lines=tuple(lines))


def _exposed(training: TrainingResult) -> str:
    """Describe the time that communication adds to an iteration: measured, if it was, and predicted."""
    pipeline, gradients = training.exposed_pipeline_s * 1e3, training.exposed_data_s * 1e3
    if training.measured_pipeline_s is None or training.measured_data_s is None:
        return f"predicted {pipeline:,.3f} ms between stages and {gradients:,.3f} ms for gradients"
    measured = training.measured_pipeline_s * 1e3, training.measured_data_s * 1e3
    return (
        f"measured {measured[0]:,.3f} ms between stages and {measured[1]:,.3f} ms for gradients "
        f"(predicted {pipeline:,.3f} and {gradients:,.3f})"
    )


def _order_paragraphs(results: Sequence[ConfigResult]) -> tuple[Paragraph, Paragraph]:
    """Return the order of what each contest compares, in each engine, and those of the paper's configurations, with
    verdicts on its claims."""
    others, papers = list[str](), list[str]()
    for engine in dict.fromkeys(one.engine for one in results):
        of_engine, of_paper = _orders(engine, [one for one in results if one.engine == engine])
        others += of_engine
        papers += of_paper
    what = "the modes" if any(one.key == MODE for one in contests_of(settings_of(results))) else "compared"
    paper = f"the paper's claims: {' > '.join(PAPER_ORDER)}, joint about {PAPER_JOINT_GAIN:.0%} below base"
    signs = "" if others else f"; {SIGNS}"
    return (
        Paragraph(about=About.ORDERS, heading=f"{what}, slowest first ({SIGNS})", lines=tuple(others)),
        Paragraph(
            about=About.CLAIMS,
            heading=f"{paper} (here: within {ABOUT * 100:.0f} points of it{signs})",
            lines=tuple(papers),
        ),
    )


def _orders(engine: str, results: Sequence[ConfigResult]) -> tuple[list[str], list[str]]:
    """Return the orders of an engine's contests, and those of the paper's configurations."""
    papers, times = {result.index for result in results if _has_paper_values(result)}, point_times(results)
    contests, of_paper = [], []
    for contest in contests_of(settings_of(results)):
        series = contest.times(times)
        if contest.key == MODE and contest.all_places[0].setting in papers:
            of_paper.append(f"{engine}, {contest.where}: {_claims(series)}")
        elif len(series) > 1 and contest.has_order(engine):
            contests.append((contest, series))
    return [f"{engine}, {where}: {order}" for where, order in orders_of(contests)], of_paper


def _claims(times: Mapping[str, Series]) -> str:
    """Return the order of the modes and how far joint is below base, whatever the baseline is, with both verdicts."""
    tested, joint = claims(times), gain(times["base"], times["joint"])
    assert joint is not None  # all modes have all collectives
    order = f"{tested.order_text}{_verdict(tested.order_holds)}"
    return f"{order}; joint {share(joint)} below base{_verdict(tested.joint_holds)}"


def _has_paper_values(result: ConfigResult) -> bool:
    return is_paper_configuration(plain_values(result.config), [point.mode for point in result.points])


def _verdict(holds: bool | None) -> str:
    return {True: " (holds)", False: " (differs)", None: " (open)"}[holds]
