"""The study `run.py permutation` as a script: `python scenarios/permutation.py`. See --help."""

import sys
from pathlib import Path

if __name__ == "__main__":  # import from the top of the project, wherever the command is started
    ROOT = Path(__file__).resolve().parent.parent
    sys.path[:] = [str(ROOT), *(path for path in sys.path if Path(path or ".").resolve() != ROOT / "scenarios")]

    from scenarios.signals import supervised
    from scenarios.studies import harness, permutation

    sys.exit(supervised(lambda: harness.main(permutation.STUDY)))
