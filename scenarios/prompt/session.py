"""A prompt's life: the network comes up, somebody types, everything goes down again, whatever ends it.

``python -m scenarios.prompt.session SCENARIO FOLDER WHERE`` is one in the VM, as root: SCENARIO is the text of a
TOML file, WHERE a few words for the banner on where the network is.
"""

import os
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from scenarios.ground import Ground
from scenarios.loader import load_scenario
from scenarios.prompt import history, words
from scenarios.prompt.bench import Bench
from scenarios.prompt.commands import PromptError
from scenarios.prompt.shell import Prompt
from scenarios.spec import Scenario
from scenarios.testbed import Failure

_INSIST_S = 0.1
_LEAD_S = 0.08  # for each GPU: nobody at a prompt waits for a machine to be quick


def serve(setting: Scenario, *, own_kernel: bool, folder: Path, where: str) -> int:
    """Have the network of a setting up for as long as somebody types; return an exit status.

    It is on the machine's own kernel, or this is a VM. Captures go to `folder`. Handles SIGINT, SIGTERM and SIGHUP
    itself from now on.
    """
    real = Ground.real(setting.run.scale, own_kernel=own_kernel)
    signal.signal(signal.SIGINT, _interrupt_once)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    _insist()
    try:
        with real.files() as files:
            on = replace(real, folder=files, lead_s=max(real.lead_s, _LEAD_S * setting.gpus))
            return _serve(setting, on, folder, where)
    except (*Failure, PromptError) as error:
        print(f"longhaul: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("longhaul: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT


def _serve(setting: Scenario, on: Ground, folder: Path, where: str) -> int:
    with Bench(setting, ground=on, tell=_tell) as bench:
        print(words.banner(bench.fabric, on.scale, where=where, folder=str(folder)), flush=True)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            Prompt(bench, folder=folder, remembered=history.place(os.environ))
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            _tell("down again", verb="taking everything")
    return 0


def _interrupt_once(*_: object) -> NoReturn:
    """A Ctrl-C while the network comes up: what follows is the clean-up, which a second one must not cut short."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt


def _end(number: int, _frame: object) -> NoReturn:
    for other in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(other, signal.SIG_IGN)
    raise SystemExit(128 + number)


def _insist() -> None:
    """Repeat a signal that is to end the prompt until it is heeded.

    One that comes between the prompt's last look for signals and its wait for a line would wait for the line, too.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    main = threading.main_thread().ident
    assert main is not None

    def watch() -> None:
        while numbers := os.read(reader, 1):
            while signal.getsignal(numbers[0]) is _end:
                time.sleep(_INSIST_S)
                signal.pthread_kill(main, numbers[0])

    threading.Thread(target=watch, daemon=True).start()


def _tell(what: str, verb: str = "bringing up") -> None:
    print(f"longhaul: {verb} {what}", file=sys.stderr, flush=True)


def main(arguments: list[str]) -> int:
    """Serve one prompt in the VM."""
    text, folder, where = arguments
    with Ground().files() as files:
        scenario = files / "scenario.toml"
        scenario.write_text(text)
        setting = load_scenario(str(scenario))
    return serve(setting, own_kernel=False, folder=Path(folder), where=where)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
