"""The OpenFlow controller: path choice, flow rules, the app, and its socket."""

import os
import signal
import sys

# For Ctrl-C while `python -m controller` imports. A process that a script starts with & ignores SIGINT: keep that.
if sys.argv[:1] == ["-m"] and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
