"""What the numbers say: the timing model, statistics, figures."""

import os
import signal
import sys

if sys.argv[:1] == ["-m"]:  # imported for `python -m analysis.figures`, whose modules take a while to import
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
