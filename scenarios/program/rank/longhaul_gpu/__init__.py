"""Gives a rank's PyTorch script the time of a GPU, and serves its `cuda` devices on CPU tensors.

It is active only with LONGHAUL_GPU_MODEL in the environment (`models.of_text`), which the run sets from `program.gpu`.
torch calls `activate` at the end of `import torch`, as the folder `longhaul_gpu-1.dist-info` beside this package names
it as an extension (`torch.backends`). Without the variable it does nothing and imports nothing.
"""

import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .recording import Recorder
    from .streams import Due

MODEL = "LONGHAUL_GPU_MODEL"
"""The variable with the GPU: a name of `models.MODELS`, or JSON."""

KERNELS = "LONGHAUL_GPU_KERNELS"
"""The variable with the path of a table of kernel times (`kernels`)."""

TENSORS = "LONGHAUL_GPU_TENSORS"
"""The variable that says whether tensors have values: "real" (or nothing), or "fake"."""

REPORT = "LONGHAUL_GPU_REPORT"
"""The variable with the path of the file to which the accounts are written at the end of the process."""

STEPS = "LONGHAUL_GPU_STEPS"
"""The variable with the path of the file to which the records of steps are written at the end of the process."""


def activate() -> None:
    """Charge the script's operations from now on; exits with a sentence if a variable has a value not allowed."""
    if not os.environ.get(MODEL):
        return
    from . import activation

    activation.activate()


def ready_ns() -> int:
    """Return when the current stream has computed all that it has been given, in ns of CLOCK_MONOTONIC: a message may
    not begin before. Waits for what is due. 0 if nothing is charged."""
    streams = sys.modules.get(f"{__name__}.streams")
    return 0 if streams is None else streams.DEVICE.settled_ns(streams.DEVICE.current)


def defer(work: "Due") -> bool:
    """Have the current stream wait for a collective instead of the host; return whether it does."""
    streams = sys.modules.get(f"{__name__}.streams")
    return streams is not None and bool(streams.DEVICE.defer(work))


def joined(ids: tuple[int, ...] = ()) -> None:
    """Make the current stream wait for now: the caller has waited for the ends of the collectives with these ids."""
    streams = sys.modules.get(f"{__name__}.streams")
    if streams is not None:
        streams.DEVICE.join(ids)


def awaited() -> "tuple[int, tuple[int, ...], tuple[Due, ...]]":
    """Return what a collective waits for that the script issues now: an instant in ns of CLOCK_MONOTONIC, the ids of
    what has ended by then, and what is due."""
    streams = sys.modules.get(f"{__name__}.streams")
    if streams is None:
        return 0, (), ()
    stream = streams.DEVICE.current
    return stream.end_ns, stream.after, stream.due


def recorder() -> "Recorder | None":
    """Return what records this rank's kernels and collectives; None if nothing is charged."""
    active = sys.modules.get(f"{__name__}.activation")
    found: Recorder | None = None if active is None else active.RECORDER
    return found


def is_fake(tensor: Any) -> bool:
    """Return whether a tensor has no values, as `program.tensors` is "fake"."""
    fake = sys.modules.get(f"{__name__}.fake")
    return fake is not None and bool(fake.is_fake(tensor))


def make_fake(tensors: Iterable[Any]) -> None:
    """Make tensors ones without values; some may be so already."""
    sys.modules[f"{__name__}.fake"].mark(tensors)
