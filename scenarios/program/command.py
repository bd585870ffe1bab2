"""Runs a user's program for the command line: prints the outcome, and completes the run folder."""

import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from analysis.results.reader import PROGRAM, ResultsError
from scenarios.experiment.options import BAD_USAGE, DONE, FAILED
from scenarios.experiment.run_files import RunFiles
from scenarios.experiment.run_folder import RunFolder
from scenarios.program import session
from scenarios.program.session import COUNTED
from scenarios.spec.keys import KEYS
from scenarios.spec.scenario import Scenario
from scenarios.spec.values import DELAY
from scenarios.vm import VMError, VMUsageError

_MOST_SHARE = 1.05  # of its rate that a link may seem to carry, as the last packet counts whole


class _Ran(NamedTuple):
    """A program's run in one configuration: its result, and sentences for failures and for what else is to be known."""

    result: dict[str, Any]
    failures: list[str]
    notes: list[str]


def run_program(scenario: Scenario, folder: RunFolder, command: Sequence[str], *, as_json: bool) -> int:
    """Run the program of a scenario into a folder, once in each configuration; return the exit status, 0 if all ranks
    ended with 0. With several configurations each has a folder of its own, whose name is its number from 1 on."""
    modes, ran = scenario.run.modes, list[_Ran]()
    if len(modes) > 1:
        _say(
            f"the program runs once, in {modes[0]}, the first of the modes {', '.join(modes)}: run it again for each "
            f"other mode, as with --modes {modes[1]}"
        )
    try:
        files = RunFiles.begun(folder, scenario, engines=[PROGRAM], command=command)
    except OSError as error:
        _say(f"{folder.path} cannot be written to: {error.strerror or error}")
        return FAILED
    try:
        for number in range(len(scenario.configurations())):
            ran.append(_run_in(scenario, number, folder.path, tells=not as_json))
            for line in ran[-1].failures:
                files.log(line)
        notes = [*dict.fromkeys(note for one in ran for note in one.notes), session.time_note(scenario)]
        _end(files, [one.result for one in ran], notes)
    except VMError as error:
        if not ran:
            files.discard()
        _say(str(error))
        return BAD_USAGE if isinstance(error, VMUsageError) else error.status
    except (OSError, ResultsError) as error:
        _say(f"{folder.path} cannot be written to: {getattr(error, 'strerror', None) or error}")
        return FAILED
    except BaseException:
        files.log("interrupted")
        _say(f"the unfinished run is in {folder.path}")
        raise
    finally:
        folder.close()
    failures = [line for one in ran for line in one.failures]
    if as_json:
        whole = ran[0].result if len(ran) == 1 else {"configurations": [one.result for one in ran]}
        print(json.dumps({**whole, "folder": str(folder.path)}))
    for line in [*notes, *failures, *([] if as_json else [f"the run is in {folder.path}"])]:
        _say(line)
    return FAILED if failures else DONE


def _run_in(scenario: Scenario, number: int, folder: Path, *, tells: bool) -> _Ran:
    """Run a scenario's program in the configuration with this number, from 0 on, and write its files; if it `tells`,
    print the outcome. Raises VMError, OSError and ResultsError."""
    configs, swept = scenario.configurations(), [axis.key for axis in scenario.sweep if len(axis.values) > 1]
    config, where, which = configs[number], "", dict[str, Any]()
    if len(configs) > 1:
        folder, where = folder / str(number + 1), f"{config.label}: "
        values = dict(_cell(key, value) for key, value in config.at if key in swept)
        which = {"configuration": number + 1, "label": config.label, "values": values}
        folder.mkdir()
    if where and tells:
        print(f"{number + 1} of {len(configs)}: {config.label}", flush=True)
    began_s = time.monotonic()
    try:
        state, why = session.run(config, folder=folder)
    except VMError:
        if where:
            folder.rmdir()
        raise
    result = which | session.result_of(config, state, why, time.monotonic() - began_s)
    session.write_results(state, result)
    if tells:
        print(_table(result), flush=True)
    failures, notes = session.failures(result, config, folder), session.notes(result, config)
    return _Ran(result, [where + line for line in failures], [where + line for line in notes])


def _cell(key: str, value: Any) -> tuple[str, Any]:
    """Return name and value of a column for a swept key: a number (a time in s), or text as in a scenario."""
    kind = KEYS[key].kind
    if isinstance(value, bool | int | float):
        return f"{key}_s" if kind.unit == DELAY.unit else key, value
    return key, (key == "fabric.wan" and value.name) or str(kind.write(value))


def _end(files: RunFiles, results: Sequence[dict[str, Any]], notes: Sequence[str]) -> None:
    """Complete the run folder; raises OSError."""
    if len(results) > 1:
        session.write_sweep(files.path, results)
    for line in notes:
        files.log(line)
    files.end([], {})


def _table(result: Mapping[str, Any]) -> str:
    """Format the ranks and the WAN links of a run as a table."""
    lines = [f"{'rank':>4} {'GPU':>5} {'status':>6} {'end, s':>14} {'retransmitted segments':>22} {'UDP drops':>9}"]
    for rank in result["ranks"]:
        status = "" if rank["status"] is None else rank["status"]
        end = "" if rank["end_s"] is None else f"{rank['end_s']:,.6f}"
        segments, datagrams = ("" if rank[name] is None else rank[name] for name in COUNTED)
        lines.append(f"{rank['rank']:>4} {rank['gpu']:>5} {status:>6} {end:>14} {segments:>22} {datagrams:>9}")
    lines.append(f"{'WAN link':<16} {'bytes':>16} {'of its rate':>12}")
    for link in result["links"]:
        lines.append(f"{link['link']:<16} {link['bytes']:>16,} {_share(link):>11}")
    for capture in result["captures"] or ():
        lines.append(f"{capture['link']}: {capture['packets']:,} packets in {capture['file']}")
    if result["changes"]:
        lines.append(f"conditions changed {_times(result['changes'])}, and WAN paths {_times(result['rerouted'])}")
    drops = "" if result["drops"] is None else f", {result['drops']} packets dropped"
    lines.append(f"{result['run_s']:.6f} s of the run's time, {result['wall_s']:.1f} s of wall time{drops}")
    return "\n".join(lines)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def _share(link: Mapping[str, Any]) -> str:
    """Return which share of its rate a link carried. Packets count whole when they leave, so that a run that is shorter
    than one packet's time, or little longer, has no share."""
    if not link["bytes"]:
        return f"{0:.1%}"
    share = link["bytes"] / link["capacity_bytes"] if link["capacity_bytes"] else math.inf
    return f"{min(share, 1):.1%}" if share <= _MOST_SHARE else "too short"


def _say(line: str) -> None:
    print(f"run.py: {line}", file=sys.stderr)
