"""The timing model, statistics, run folders, figures and the report."""

import os
import signal
import sys

# Ctrl-C while `python -m analysis.figures` is importing, which takes a while; what a script starts with & ignores it.
if sys.argv[:1] == ["-m"] and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
