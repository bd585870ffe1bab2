"""Runs a user's program for the command line: prints the outcome, and completes the run folder."""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from analysis.results.reader import PROGRAM, ResultsError
from scenarios.experiment.options import BAD_USAGE, DONE, FAILED
from scenarios.experiment.place import Place
from scenarios.experiment.run_directory import RunDirectory
from scenarios.program import session
from scenarios.spec.scenario import Scenario
from scenarios.vm import VMError, VMUsageError


def run_program(setting: Scenario, place: Place, command: Sequence[str], *, as_json: bool) -> int:
    """Run the program of a configuration into a folder; return the exit status, 0 if all ranks ended with 0."""
    modes = setting.run.modes
    if len(modes) > 1:
        _say(f"WAN paths are chosen by {modes[0]}, the first of the modes {', '.join(modes)}")
    try:
        folder = RunDirectory.begun(place, setting, engines=[PROGRAM], command=command)
    except OSError as error:
        _say(f"{place.path} cannot be written to: {error.strerror or error}")
        return FAILED
    began_s = time.monotonic()
    try:
        account, why = session.run(setting, place=place)
    except VMError as error:
        folder.discard()
        _say(str(error))
        return BAD_USAGE if isinstance(error, VMUsageError) else error.status
    except BaseException:
        folder.log("interrupted")
        raise
    found = session.told(setting, account, why, time.monotonic() - began_s)
    wrong = session.failures(found, setting, place.path)
    notes = [*session.notes(found, setting)]
    try:
        session.leave(account, found)
        for line in [*wrong, *notes]:
            folder.log(line)
        folder.end([], {})
    except (OSError, ResultsError) as error:
        _say(f"{place.path} cannot be written to: {getattr(error, 'strerror', None) or error}")
        return FAILED
    finally:
        place.close()
    print(json.dumps({**found, "folder": str(place.path)}) if as_json else _table(found))
    for line in [*notes, *wrong]:
        _say(line)
    if not as_json:
        _say(f"the run is in {place.path}")
    return FAILED if wrong else DONE


def _table(found: Mapping[str, Any]) -> str:
    """Format the ranks and the WAN links of a run as a table."""
    lines = [f"{'rank':>4} {'GPU':>5} {'status':>6} {'end, s':>14} {'sent again':>10}"]
    for one in found["ranks"]:
        end, again = one["end_s"], one["retransmitted_segments"]
        status = "" if one["status"] is None else one["status"]
        ended = "" if end is None else f"{end:,.6f}"
        lines.append(f"{one['rank']:>4} {one['gpu']:>5} {status:>6} {ended:>14} {'' if again is None else again:>10}")
    lines.append(f"{'WAN link':<16} {'bytes':>16} {'of its rate':>12}")
    for link in found["links"]:
        share = link["bytes"] / link["capacity_bytes"] if link["capacity_bytes"] else 0.0
        lines.append(f"{link['link']:<16} {link['bytes']:>16,} {share:>11.1%}")
    for one in found["captures"] or ():
        lines.append(f"{one['link']}: {one['packets']:,} packets in {one['file']}")
    if found["changes"]:
        lines.append(f"conditions changed {found['changes']:,} times, and WAN paths {found['rerouted']:,} times")
    drops = "" if found["drops"] is None else f", {found['drops']} packets dropped"
    lines.append(f"{found['run_s']:.6f} s of the run's time in {found['wall_s']:.1f} s{drops}")
    return "\n".join(lines)


def _say(line: str) -> None:
    print(f"run.py: {line}", file=sys.stderr)
