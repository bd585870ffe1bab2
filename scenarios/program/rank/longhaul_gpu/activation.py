"""Makes a process of torch a rank with a GPU: charges its operations, and serves its `cuda` devices."""

import atexit
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from . import KERNELS, MODEL, REPORT, STEPS, TENSORS, cuda, distributed, kernels, models
from .accounting import Accounts
from .charging import Charging
from .recording import Recorder
from .steps import Steps
from .streams import DEVICE

if TYPE_CHECKING:
    from .fake import Fake

ACCOUNTS = Accounts(DEVICE)
"""The accounts of this process."""

_RANKS = os.environ.get("WORLD_SIZE", "")
RECORDER = Recorder(int(_RANKS) if _RANKS.isdecimal() else 1)
"""The records of this process."""

_active = list[object]()  # keeps the modes alive


def activate() -> None:
    """Charge the script's operations from now on and serve `cuda`; once. Exits with a sentence if a variable has a
    value that is not allowed."""
    if _active:
        return
    try:
        gpu = models.of_text(os.environ[MODEL])
        table = _table(os.environ.get(KERNELS))
        fake = _fake(os.environ.get(TENSORS))
    except ValueError as error:
        _refuse(f"{MODEL}: {error}")
    steps = Steps(DEVICE, RECORDER.stepped)
    distributed.serve()
    cuda_mode = cuda.serve(gpu, DEVICE, None if fake is None else fake.read)
    waits = distributed.host_waits
    mode = Charging(gpu, DEVICE, ACCOUNTS, table, waits_for_ready=waits, recorder=RECORDER, fake=fake)
    steps.watch()
    for one in (cuda_mode, mode):
        one.__enter__()
        _active.append(one)

    folder, owner = Path.cwd(), os.getpid()  # the script may go elsewhere, or fork

    def end() -> None:
        if os.getpid() != owner:
            return
        with suppress(Exception):  # the failure of a collective for which the script has not waited
            DEVICE.wait(DEVICE.end_ns)
        steps.tell()
        report, recorded = os.environ.get(REPORT), os.environ.get(STEPS)
        # A launcher loads torch, too, and ends after the script: it would leave an account of nothing.
        ACCOUNTS.end(str(folder / report) if report and ACCOUNTS.by_operation else None)
        RECORDER.end(str(folder / recorded) if recorded else None)

    atexit.register(end)


def _table(path: str | None) -> kernels.KernelTable | None:
    if not path:
        return None
    try:
        with Path(path).open(encoding="utf-8", newline="") as file:
            return kernels.parse(file)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _fake(text: str | None) -> "Fake | None":
    if text in (None, "", "real"):
        return None
    if text != "fake":
        raise ValueError(f"{TENSORS} is {text!r}; allowed: real, fake")
    from .fake import Fake, reserve_large  # slow to import, as it imports torch's own fake tensors

    reserve_large()
    return Fake(ACCOUNTS)


def _refuse(sentence: str) -> NoReturn:
    print(f"longhaul: {sentence}", file=sys.stderr, flush=True)
    os._exit(1)  # torch turns any exception of an extension into a RuntimeError with a traceback
