"""Runs inside the VM, as root: ``worlds.py CASES`` plays each case of `tests.fakes.cases` in the testbed.

Prints a JSON object: by case, what each collective showed.
"""

import json
import sys

from scenarios.policies.play import play
from scenarios.spec.load import scenario_of
from scenarios.testbed.point_run import PointRun
from scenarios.testbed.recovery import Recovery
from scenarios.testbed.testbed import Testbed
from tests.fakes.contract import MODE, shown


def main() -> None:
    found = {}
    for name, text in json.loads(sys.argv[1]).items():
        (setting,) = scenario_of(text).configurations()
        with Testbed(setting, fair_links=setting.fair_links(MODE)) as testbed:
            point = PointRun(testbed, setting.mode(MODE))
            outcomes = play(Recovery(point), point.player, range(setting.collective.count))
            found[name] = [shown(outcome) for outcome in outcomes]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
