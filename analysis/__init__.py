"""The timing model, statistics, run folders, figures and the report."""

import os
import signal
import sys

# Exit at once on Ctrl-C during the slow imports of `python -m analysis.figures`. A background job of a script (`&`)
# ignores SIGINT, and keeps ignoring it.
if sys.argv[:1] == ["-m"] and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
