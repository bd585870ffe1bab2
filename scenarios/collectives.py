"""The study `run.py collectives` as a script: `python scenarios/collectives.py`. See --help."""

import sys
from pathlib import Path

if __name__ == "__main__":  # import from the top of the project, wherever the command is started
    ROOT = Path(__file__).resolve().parent.parent
    sys.path[:] = [str(ROOT), *(path for path in sys.path if Path(path or ".").resolve() != ROOT / "scenarios")]

    from scenarios.signals import supervised
    from scenarios.studies import collectives, harness

    sys.exit(supervised(lambda: harness.main(collectives.STUDY)))
