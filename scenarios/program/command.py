"""Runs a user's program for the command line: prints the outcome, and completes the run folder."""

import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from analysis.results.reader import PROGRAM, ResultsError
from scenarios.experiment.options import BAD_USAGE, DONE, FAILED
from scenarios.experiment.run_files import RunFiles
from scenarios.experiment.run_folder import RunFolder
from scenarios.program import session
from scenarios.program.session import COUNTED
from scenarios.spec.scenario import Scenario
from scenarios.vm import VMError, VMUsageError

_MOST_SHARE = 1.05  # of its rate that a link may seem to carry, as the last packet counts whole


def run_program(config: Scenario, folder: RunFolder, command: Sequence[str], *, as_json: bool) -> int:
    """Run the program of a configuration into a folder; return the exit status, 0 if all ranks ended with 0."""
    modes = config.run.modes
    if len(modes) > 1:
        _say(
            f"the program runs once, in {modes[0]}, the first of the modes {', '.join(modes)}: run it again for each "
            f"other mode, as with --modes {modes[1]}"
        )
    try:
        files = RunFiles.begun(folder, config, engines=[PROGRAM], command=command)
    except OSError as error:
        _say(f"{folder.path} cannot be written to: {error.strerror or error}")
        return FAILED
    began_s = time.monotonic()
    try:
        state, why = session.run(config, folder=folder)
    except VMError as error:
        files.discard()
        _say(str(error))
        return BAD_USAGE if isinstance(error, VMUsageError) else error.status
    except BaseException:
        files.log("interrupted")
        _say(f"the unfinished run is in {folder.path}")
        raise
    result = session.result_of(config, state, why, time.monotonic() - began_s)
    failures = session.failures(result, config, folder.path)
    notes = [*session.notes(result, config)]
    try:
        session.write_results(state, result)
        for line in [*failures, *notes]:
            files.log(line)
        files.end([], {})
    except (OSError, ResultsError) as error:
        _say(f"{folder.path} cannot be written to: {getattr(error, 'strerror', None) or error}")
        return FAILED
    finally:
        folder.close()
    print(json.dumps({**result, "folder": str(folder.path)}) if as_json else _table(result))
    for line in [*notes, *failures]:
        _say(line)
    if not as_json:
        _say(f"the run is in {folder.path}")
    return FAILED if failures else DONE


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
