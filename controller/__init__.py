"""The OpenFlow controller: path choice, flow rules, the app, and its socket."""

import os
import signal
import sys

# Lets Ctrl-C end `python -m controller` while it still imports. A process that a script starts with & ignores SIGINT;
# that is left as it is.
if sys.argv[:1] == ["-m"] and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
