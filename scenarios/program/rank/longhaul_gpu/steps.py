"""Tells the run the time of each step of training, which ends with a step of the script's first optimizer."""

import weakref
from collections.abc import Callable
from importlib import import_module
from typing import Any

from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from .streams import Device


class Steps:
    """Prints the line of `longhaul.report` for each step but the first, which has no step before it.

    A step takes from the end of the one before to its own end on the GPU's stream. Its line is printed one step later:
    a script that calls `longhaul.report` itself does so meanwhile, and then no line is printed at all. `ended` is
    called with now and with the end of each step, in ns.
    """

    def __init__(self, device: Device, ended: Callable[[int, int], object] = lambda now_ns, end_ns: None) -> None:
        self._device, self._ended = device, ended
        self._optimizer: weakref.ref[Optimizer] | None = None
        self._end_ns: int | None = None
        self._untold_s: float | None = None
        self._script_reports = False
        self._module: Any = import_module("longhaul")
        self._report = self._module.report

    def watch(self) -> None:
        """Follow the script's optimizers from now on."""

        def report(step: float, tokens: float | None = None) -> None:
            self._script_reports = True
            self._report(step, tokens)

        self._module.report = report
        register_optimizer_step_post_hook(self._stepped)

    def _stepped(self, optimizer: Optimizer, *_: Any) -> None:
        if self._optimizer is None:
            self._optimizer = weakref.ref(optimizer)
        if self._optimizer() is not optimizer:
            return
        self.tell()
        now_ns = self._device.now_ns()
        end_ns = max(now_ns, self._device.current.end_ns)
        self._ended(now_ns, end_ns)
        if self._end_ns is not None:
            self._untold_s = (end_ns - self._end_ns) / 1e9
        self._end_ns = end_ns

    def tell(self) -> None:
        """Print the line of the last step, unless the script reports steps itself."""
        if self._untold_s is not None and not self._script_reports:
            self._report(self._untold_s)
        self._untold_s = None
