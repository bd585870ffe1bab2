"""A prompt's life: the network comes up, somebody types, everything goes down again, whatever ends it.

``python -m scenarios.prompt.session SCENARIO SCALE FOLDER WHERE`` is one in the VM, as root: SCENARIO is the text of a
TOML file, WHERE a few words for the banner on where the network is.
"""

import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

from scenarios.ground import WALL_LATE_S, WALL_LEAD_S, Ground
from scenarios.loader import load_scenario
from scenarios.prompt import history, words
from scenarios.prompt.bench import Bench
from scenarios.prompt.commands import PromptError
from scenarios.prompt.shell import Prompt
from scenarios.spec import Scenario
from scenarios.testbed import Failure
from topologies.scale import RateScale


def ground(scale: RateScale, *, own_openvswitch: bool, folder: Path) -> Ground:
    """What a network in real time stands on."""
    return Ground(own_openvswitch=own_openvswitch, folder=folder, scale=scale, late_s=WALL_LATE_S, lead_s=WALL_LEAD_S)


def serve(setting: Scenario, *, on: Ground, folder: Path, where: str) -> int:
    """Have the network of a setting up for as long as somebody types; return an exit status.

    Captures go to `folder`. Handles SIGINT, SIGTERM and SIGHUP itself from now on.
    """
    signal.signal(signal.SIGINT, _interrupt_once)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    try:
        with Bench(setting, ground=on, tell=_tell) as bench:
            print(words.banner(bench.fabric, on.scale, where=where, folder=str(folder)), flush=True)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            try:
                Prompt(bench, folder=folder, remembered=history.place(os.environ))
            finally:
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                _tell("down again", verb="taking everything")
    except (*Failure, PromptError) as error:
        print(f"longhaul: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("longhaul: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    return 0


def _interrupt_once(*_: object) -> NoReturn:
    """A Ctrl-C while the network comes up: what follows is the clean-up, which a second one must not cut short."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt


def _end(number: int, _frame: object) -> NoReturn:
    for other in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(other, signal.SIG_IGN)
    raise SystemExit(128 + number)


def _tell(what: str, verb: str = "bringing up") -> None:
    print(f"longhaul: {verb} {what}", file=sys.stderr, flush=True)


def main(arguments: list[str]) -> int:
    """Serve one prompt in the VM."""
    text, scale, folder, where = arguments
    on = ground(RateScale.parse(scale), own_openvswitch=True, folder=Ground().folder)
    on.folder.mkdir(mode=0o700, exist_ok=True)
    scenario = on.folder / "scenario.toml"
    scenario.write_text(text)
    return serve(load_scenario(str(scenario)), on=on, folder=Path(folder), where=where)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
