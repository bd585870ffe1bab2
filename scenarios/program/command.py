"""Runs a user's program for the command line: prints the outcome, and completes the run folder."""

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from analysis.results.reader import PROGRAM, PROVENANCE, ResultsError
from analysis.statistics.contests import Place
from analysis.statistics.program_answer import program_answer
from scenarios.experiment.options import BAD_USAGE, DONE, FAILED
from scenarios.experiment.run_files import RunFiles
from scenarios.experiment.run_folder import RunFolder
from scenarios.program import collective_results, script_steps, session
from scenarios.program.session import COUNTED
from scenarios.spec.keys import KEYS
from scenarios.spec.labels import cell_text, setting_of
from scenarios.spec.scenario import Scenario
from scenarios.spec.values import DELAY
from scenarios.vm import VMError, VMUsageError
from topologies.shaping.classes import FRAME_BYTES

_USES = {
    "": ("over the run", "the bytes as a share of those that the link's rate allows in the run"),
    "in_use_": ("while in use", "the same in the samples (every program.sample) in which the link carried anything"),
    "in_collectives_": ("in collectives", "the same while a collective ran"),
}
"""What the table has of the use of a WAN link, with a definition, by the beginning of its names in `links` of
program.json."""
_SHARE = 20
_MOST_SHARE = 1.05  # of its rate that a link may seem to carry, as the last packet counts whole


class _Ran(NamedTuple):
    """A program's run in one configuration: its result, and sentences for failures and for what else is to be known."""

    result: dict[str, Any]
    failures: list[str]
    notes: list[str]


def run_program(
    scenario: Scenario, folder: RunFolder, command: Sequence[str], chosen: Sequence[str], *, as_json: bool, shown: str
) -> int:
    """Run the program of a scenario into a folder, once in each configuration and each of the `chosen` modes; return
    the exit status, 0 if all ranks ended with 0. Of several runs each has a folder of its own, whose name is its number
    from 1 on. `shown` are the ranks whose output is printed meanwhile (`options.RANK_OUTPUT`)."""
    modes, ran = scenario.run.modes, list[_Ran]()
    if len(modes) > len(chosen):
        _say(
            f"the program runs in {modes[0]}, the first of the modes {', '.join(modes)}: "
            f"with --modes {modes[0]},{modes[1]} it runs in both, one after the other"
        )
    try:
        files = RunFiles.begun(folder, scenario, engines=[PROGRAM], command=command)
    except OSError as error:
        _say(f"{folder.path} cannot be written to: {error.strerror or error}")
        return FAILED
    points = [(config, mode) for config in scenario.configurations() for mode in chosen]
    try:
        for one in _runs(scenario, points, folder.path, tells=not as_json, shown=shown):
            ran.append(one)
            for line in one.failures:
                files.log(line)
        results = [one.result for one in ran]
        notes = [*dict.fromkeys(note for one in ran for note in one.notes), *session.time_notes(scenario, results)]
        notes += session.rates_notes(scenario.configurations())
        answer = _answer(ran, points)
        _end(files, results, [*filter(None, [answer]), *notes])
    except VMError as error:
        if not ran:
            files.discard()
        _say(str(error))
        _keep(files.path, ran, points, tells=not as_json)
        return BAD_USAGE if isinstance(error, VMUsageError) else error.status
    except (OSError, ResultsError) as error:
        _say(f"{folder.path} cannot be written to: {getattr(error, 'strerror', None) or error}")
        _keep(files.path, ran, points, tells=not as_json)
        return FAILED
    except BaseException:
        files.log("interrupted")
        _keep(files.path, ran, points, tells=not as_json)
        raise
    finally:
        folder.close()
    failures = [line for one in ran for line in one.failures]
    if as_json:
        whole = ran[0].result if len(ran) == 1 else {"answer": answer, "configurations": [one.result for one in ran]}
        print(json.dumps({**whole, "folder": str(folder.path)}))
    if len(ran) > 1 and not as_json:
        print("\n".join(_compared(ran, answer)))
    for line in [*notes, *failures, *([] if as_json else [f"the run is in {folder.path}"])]:
        _say(line)
    return FAILED if failures else DONE


def _runs(
    scenario: Scenario, points: Sequence[tuple[Scenario, str]], folder: Path, *, tells: bool, shown: str
) -> Iterator[_Ran]:
    """Run a scenario's program in each configuration and mode, as `_run_in`; yield the runs. A command that the shell
    cannot run is run once."""
    for number in range(len(points)):
        ran, left = _run_in(scenario, points, number, folder, tells=tells, shown=shown), len(points) - number - 1
        if left and session.could_not_start(ran.result):
            ran.failures.append(f"the shell could not run the command, so {left} more runs were left out")
            yield ran
            return
        yield ran


def _run_in(
    scenario: Scenario, points: Sequence[tuple[Scenario, str]], number: int, folder: Path, *, tells: bool, shown: str
) -> _Ran:
    """Run a scenario's program in the configuration and mode with this number, from 0 on, and write its files; if it
    `tells`, print the outcome. Raises VMError, OSError and ResultsError."""
    swept = [axis.key for axis in scenario.sweep if len(axis.values) > 1]
    config, mode = points[number]
    config = replace(config, run=replace(config.run, modes=(mode,)))
    several_modes = len({mode for _, mode in points}) > 1
    where, which = "", dict[str, Any]()
    if len(points) > 1:
        label = f"{config.label}, {mode}" if several_modes else config.label
        folder, where = folder / str(number + 1), f"{label}: "
        values = dict(_cell(key, value) for key, value in config.at if key in swept)
        values |= {"mode": mode} if several_modes else {}
        which = {"configuration": number + 1, "label": label, "values": values}
        folder.mkdir()
    if where and tells:
        print(f"{number + 1} of {len(points)}: {where.removesuffix(': ')}", flush=True)
    began_s = time.monotonic()
    try:
        state, why = session.run(config, folder=folder, shows=_shows(shown, tells=tells))
    except VMError:
        if where:
            folder.rmdir()
        raise
    result = which | session.result_of(config, state, why, time.monotonic() - began_s)
    session.write_results(state, result)
    if tells:
        print(_table(result), flush=True)
        written = len([*(folder / session.OUTPUT).glob("*.stdout")])
        if shown != "all" and written > (shown == "0"):  # that of a single rank has been shown
            print(f"the output of {'the other' if shown == '0' else 'all'} ranks is in {folder / session.OUTPUT}")
    failures, notes = session.failures(result, config, folder), session.notes(result, config)
    return _Ran(result, [where + line for line in failures], [where + line for line in notes])


def _shows(shown: str, *, tells: bool) -> session.Shows:
    """Return the function that prints what ranks print: of rank 0 as it is, of all ranks line by line with the rank.

    What a rank prints on stderr, and everything if stdout is for JSON, goes to stderr.
    """
    unread: dict[tuple[int, str], bytes] = {}

    def show(rank: int, stream: str, output: bytes) -> None:
        file = sys.stdout if tells and stream == "stdout" else sys.stderr
        if shown == "0" and rank == 0:
            file.write(output.decode(errors="replace"))
            file.flush()
        if shown == "all":
            *lines, unread[rank, stream] = (unread.get((rank, stream), b"") + output).split(b"\n")
            for line in lines:
                print(f"[rank {rank}] {line.decode(errors='replace')}", file=file, flush=True)

    return show


def _answer(ran: Sequence[_Ran], points: Sequence[tuple[Scenario, str]]) -> str:
    """Return the sentences that compare runs, and tell what part of each is computing; "" for a single run."""
    if len(ran) < 2:
        return ""
    computing = session.computing_sentence([one.result for one in ran if not one.failures])
    sentence = computing and f"{computing[0].upper()}{computing[1:]}."
    return " ".join(filter(None, [_comparison(ran, points), sentence]))


def _comparison(ran: Sequence[_Ran], points: Sequence[tuple[Scenario, str]]) -> str:
    """Return the sentence that compares runs, by their median step if all have told steps; "" if none are comparable.
    Runs that failed are left out."""
    modes = tuple(dict.fromkeys(mode for _, mode in points))
    configs = [config for config, _ in points[:: len(modes)]]
    settings = [setting_of(at, replace(one, run=replace(one.run, modes=modes))) for at, one in enumerate(configs)]
    places = [Place(number // len(modes), mode) for number, (_, mode) in enumerate(points)]
    whole = [(place, one.result) for place, one in zip(places, ran, strict=False) if not one.failures]
    has_steps = all(result["step_s"] is not None for _, result in whole)
    times_s = {place: result["step_s" if has_steps else "run_s"] for place, result in whole}
    if not has_steps:
        return program_answer(settings, times_s, "run's time")
    are_mixed = any(result["are_steps_mixed"] for _, result in whole)
    return program_answer(settings, times_s, "median step", "" if are_mixed else "each as long as on its slowest rank")


def _compared(ran: Sequence[_Ran], answer: str) -> list[str]:
    """Return the answer and a table of the runs of a program: the time of each and, where they are known, the median
    time of a step and of how many, the means of its parts under `program.gpu`, and tokens per second."""
    results = [one.result for one in ran]
    columns = [("run, s", 14, [f"{result['run_s']:.6f}" for result in results])]
    of_step = [result["step_s"] for result in results]
    columns.append(("step, s", 16, ["" if step_s is None else f"{step_s:.6f}" for step_s in of_step]))
    columns.append(("median of", 11, [str(result["step_count"] or "") for result in results]))
    for part in ("computing", "exposed", "waiting"):
        means = [result["script_steps"] for result in results]
        columns.append((f"{part}, s", 14, [f"{mean[f'{part}_s']:.6f}" if mean else "" for mean in means]))
    rates = [result["tokens_per_s"] for result in results]
    columns.append(("tokens/s", 14, ["" if rate is None else f"{rate:,.1f}" for rate in rates]))
    shown = [(name, width, cells) for name, width, cells in columns if any(cells)]
    return [
        *([answer, ""] if answer else []),
        "".join(f"{name:>{width}}" for name, width, _ in shown) + "  setting",
        *(
            "".join(f"{cells[row]:>{width}}" for _, width, cells in shown) + f"  {result['label']}"
            for row, result in enumerate(results)
        ),
    ]


def _keep(folder: Path, ran: Sequence[_Ran], points: Sequence[tuple[Scenario, str]], *, tells: bool) -> None:
    """Write the tables of the runs that a sweep of `points` has made before it ended early, and if it `tells`, print
    their comparison. Figures are left out, as whoever has interrupted it waits. Tell where the files are, if any."""
    if ran and len(points) > 1:
        results = [one.result for one in ran]
        with suppress(OSError):  # the run's own files are written already
            session.write_sweep(folder, results, draws=False)
        if tells:
            print(f"{len(ran)} of {len(points)} runs are complete:")
            print("\n".join(_compared(ran, _answer(ran, points))), flush=True)
    if (folder / PROVENANCE).exists():
        again = "a program's run cannot be resumed, only started again in another folder"
        _say(f"the unfinished run is in {folder}; {again}")


def _cell(key: str, value: Any) -> tuple[str, Any]:
    """Return name and value of a column for a swept key: a number (a time in s), or text as in a scenario."""
    kind = KEYS[key].kind
    if isinstance(value, bool | int | float):
        return f"{key}_s" if kind.unit == DELAY.unit else key, value
    return key, cell_text(key, value)


def _end(files: RunFiles, results: Sequence[dict[str, Any]], notes: Sequence[str]) -> None:
    """Complete the run folder; raises OSError."""
    if len(results) > 1:
        session.write_sweep(files.path, results)
    for line in notes:
        files.log(line)
    files.end([], {})


def _table(result: Mapping[str, Any]) -> str:
    """Format the ranks and the WAN links of a run as a table."""
    lines = [f"{'rank':>4} {'GPU':>5} {'status':>7} {'end, s':>14} {'retransmitted segments':>22} {'UDP drops':>9}"]
    for rank in result["ranks"]:
        status = "" if rank["status"] is None else "stopped" if rank["stopped"] else rank["status"]
        end = "" if rank["end_s"] is None else f"{rank['end_s']:,.6f}"
        segments, datagrams = ("" if rank[name] is None else rank[name] for name in COUNTED)
        lines.append(f"{rank['rank']:>4} {rank['gpu']:>5} {status:>7} {end:>14} {segments:>22} {datagrams:>9}")
    uses = [use for use in _USES if any(link[f"{use}capacity_bytes"] is not None for link in result["links"])]
    if result["links"]:
        means = "".join(f"{_USES[use][0]:>{_SHARE}}" for use in uses)
        lines.append(f"{'WAN link':<16} {'bytes':>16}{means}")
    for link in result["links"]:
        shares = (share(link[f"{use}bytes"], link[f"{use}capacity_bytes"]) for use in uses)
        lines.append(f"{link['link']:<16} {link['bytes']:>16,}{''.join(f'{one:>{_SHARE}}' for one in shares)}")
    if result["links"] and uses:
        lines.append("; ".join(": ".join(_USES[use]) for use in uses))
    lines += collective_results.table(result["collectives"])
    lines += script_steps.table(result["script_steps"])
    for capture in result["captures"] or ():
        lines.append(f"{capture['link']}: {capture['packets']:,} packets in {capture['file']}")
    if result["changes"]:
        lines.append(f"conditions changed {_times(result['changes'])}, and WAN paths {_times(result['rerouted'])}")
    if result["tokens_per_s"] is not None:
        lines.append(f"{result['tokens_per_s']:,.1f} tokens per second")
    drops = "" if result["drops"] is None else f", {result['drops']} packets dropped"
    lines.append(f"{result['run_s']:.6f} s of the run's time, {result['wall_s']:.1f} s of wall time{drops}")
    return "\n".join(lines)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def share(sent_bytes: float, capacity_bytes: float) -> str:
    """Return which share of its rate a link carried. A packet counts whole when it leaves, so the last one may be more
    than the rate allows, and a time that is shorter than a few packets' has no share."""
    if not sent_bytes:
        return f"{0:.1%}"
    if sent_bytes > capacity_bytes * _MOST_SHARE:
        return "too short"
    is_full = 0 < sent_bytes - capacity_bytes <= FRAME_BYTES
    return f"{1 if is_full else sent_bytes / capacity_bytes:.1%}"


def _say(line: str) -> None:
    print(f"run.py: {line}", file=sys.stderr)
