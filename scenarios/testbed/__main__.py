"""One point inside the VM, as root: ``python -m scenarios.testbed.__main__ CONFIGURATION MODE COUNT [GROUND]``.

Runs the first COUNT collectives of a configuration (the JSON of `scenario.to_json`) in one mode, in the VM or on the
ground that is named, and prints lines of JSON: {"doing": WORDS} before each step that can take long; a `Row` for each
collective as soon as it is over; {"fault": ACCOUNT} for each fault as soon as it is accounted for; and {"before": ...}
and {"after": ...}, the state of the machine (`snapshot`).
"""

import json
import math
import os
import sys
from dataclasses import asdict, replace

from scenarios.policies.decide import MODES
from scenarios.signals import guarded
from scenarios.spec.scenario import from_json
from scenarios.testbed.platform import CAPACITY, VIRTUAL, Ground
from scenarios.testbed.recovery import Account, Trial
from scenarios.testbed.testbed import Failure, Testbed

_TURNS = 3  # for the pumps that carry the output


def main(arguments: list[str]) -> int:
    """Run one point and print its lines, or with the mode "capacity" what can be carried; return an exit status."""
    setting, mode, count = from_json(arguments[0]), arguments[1], arguments[2]
    ground = Ground.parse(arguments[3]) if arguments[3:] else VIRTUAL
    try:
        with (
            ground.files() as folder,
            Testbed(setting, ground=replace(ground, folder=folder), tell=tell) as testbed,
        ):
            if mode == CAPACITY:
                _say({"carried_bps": testbed.carried_bps()})
                return 0
            _say({"before": testbed.seen()})
            for found in Trial(testbed, MODES[mode]).run(count=int(count)):
                _say({"fault": _plain(found)} if isinstance(found, Account) else asdict(found))
            _say({"after": testbed.seen()})
            tell("the network's end")
    except Failure as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:
        print(f"the network does not carry what it should: {error.strerror or error}", file=sys.stderr)
        return 1
    return 0


def tell(doing: str) -> None:
    """Say what is being done next, and let it be heard: where something spins afterwards, nobody else gets a turn."""
    _say({"doing": doing})
    for _ in range(_TURNS):
        os.sched_yield()


def _say(words: dict[str, object]) -> None:
    print(json.dumps(words, allow_nan=False), flush=True)


def _plain(account: Account) -> dict[str, object]:
    """An account as JSON has it: None for what never was."""
    found = asdict(account)
    del found["struck_ns"]
    return {key: None if isinstance(value, float) and math.isnan(value) else value for key, value in found.items()}


if __name__ == "__main__":
    sys.exit(guarded(lambda: main(sys.argv[1:])))
