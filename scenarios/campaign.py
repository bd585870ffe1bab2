#!/usr/bin/env python3
"""Random faults in random scenarios: `python scenarios/campaign.py --count N --seed S`. See --help."""

import _signal  # the part of `signal` that takes no time to import

if __name__ == "__main__":
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # no traceback on Ctrl-C until the supervisor takes over

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    """Run the campaign given by sys.argv; return its exit status."""
    from scenarios.tools.fault_campaign import main

    return main()


if __name__ == "__main__":
    sys.path[:] = [str(ROOT), *(path for path in sys.path if Path(path or ".").resolve() != ROOT / "scenarios")]
    from scenarios.signals import supervised

    sys.exit(supervised(main))
