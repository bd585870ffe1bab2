"""Which way the WAN carries a collective: path choice, flow rules and the OpenFlow app."""

import os
import signal
import sys

if sys.argv[:1] == ["-m"]:  # imported for `python -m controller`, whose modules take a while to import
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
