"""The backend ``longhaul`` of torch.distributed, for CPU tensors: the testbed's own collectives over its network.

Importing this package registers the backend. In a rank of `run.py --exec`, `import torch` does so by itself: it calls
`load`, which `longhaul_torch-1.dist-info` beside this package names as an extension of torch (`torch.backends`). With
LONGHAUL_BACKEND=longhaul in the environment the backend also takes the place of those that a script names.

Modules other than `group`, `tensors`, `works` and `registration` need no torch.
"""

from importlib.util import find_spec


def load() -> None:
    """Register the backend; torch calls this when it has been imported."""
    from .registration import register

    register()


if (found := find_spec("torch")) is not None and found.origin is not None:  # a mere folder has no origin
    load()
