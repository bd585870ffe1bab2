"""Policies of a user's own: a Python function that says before every collective what is chosen anew.

It is called with a `Situation` and returns a pair of booleans: whether paths are chosen, and whether the placement is.
"""

import runpy
import sys
import traceback
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from controller.routing.path_choice import NoPathError
from topologies.errors import Mistake, SpecError, did_you_mean, shown

Floats = npt.NDArray[np.float64]


class Situation:
    """What a policy's function may go by before a collective.

    `number` is the collective's, from 0 on; `rates_bps`, [links], are the rates of logical links as its knowledge has
    them; `embedded` and `routed` are the numbers of the collectives before which placement and paths were last chosen,
    -1 for never; `seconds`, predicted under those rates, are computed when they are asked for.
    """

    def __init__(
        self, number: int, rates_bps: Floats, *, embedded: int, routed: int, seconds: Callable[[str], float]
    ) -> None:
        self.number, self.embedded, self.routed = number, embedded, routed
        self.rates_bps = rates_bps.copy()
        self._seconds = seconds

    @property
    def kept_s(self) -> float:
        """The time of this collective with the placement and the paths in force."""
        return self._seconds("kept")

    @property
    def rerouted_s(self) -> float:
        """The time with this placement and the best paths for it."""
        return self._seconds("rerouted")

    @property
    def anew_s(self) -> float:
        """The time with a new placement and the best paths for it."""
        return self._seconds("anew")


def where(text: str) -> tuple[Path, str]:
    """The file and the name of a function, of "FILE:NAME"; raises ValueError with a sentence."""
    path, colon, name = text.rpartition(":")
    if not (colon and path and name.isidentifier() and path.isprintable()):
        raise ValueError("is not understood; allowed: FILE:NAME, a Python file and a function in it")
    return Path(path), name


@lru_cache(maxsize=16)
def function(text: str) -> Callable[[Situation], Any]:
    """The function at "FILE:NAME"; raises ValueError with a sentence where there is none."""
    path, name = where(text)
    try:
        with redirect_stdout(sys.stderr):  # stdout is for results
            names = runpy.run_path(str(path), run_name=path.stem)  # a program that the user names
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from None
    except SyntaxError as error:
        raise ValueError(f"is not Python: {error.msg} in line {error.lineno}") from None
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        raise ValueError(f"fails when it is read: {type(error).__name__}: {error}") from None
    found = names.get(name)
    if not callable(found):
        functions = [one for one, value in names.items() if callable(value)]
        raise ValueError(f"has no function {shown(name)}{did_you_mean(name, functions)}")
    return found  # type: ignore[no-any-return]


def answer(text: str, situation: Situation) -> tuple[bool, bool]:
    """Whether the function at "FILE:NAME" has paths chosen, and the placement; raises SpecError where it fails, and
    NoPathError where what it asks for has no time."""
    try:
        with redirect_stdout(sys.stderr):
            found = function(text)(situation)
    except NoPathError:  # too much is down, whatever the function is
        raise
    except (Exception, KeyboardInterrupt, SystemExit) as error:  # a run's own interrupts are no KeyboardInterrupt
        mine = [one.lineno for one in traceback.extract_tb(error.__traceback__) if one.filename == str(where(text)[0])]
        line = f", line {mine[-1]}" if mine else ""  # none where it is the call that it does not take
        raise _error(text, situation, f"{type(error).__name__}: {error}{line}") from None
    if not (isinstance(found, tuple) and len(found) == 2 and all(isinstance(one, bool | np.bool_) for one in found)):
        allowed = "a pair of booleans, whether paths are chosen and whether the placement is"
        raise _error(text, situation, f"it returned {shown(found)}; allowed: {allowed}")
    return bool(found[0]), bool(found[1])


def _error(text: str, situation: Situation, why: str) -> SpecError:
    path, name = where(text)
    return SpecError([Mistake("policy", f"{path.name}:{name}, before collective {situation.number}: {why}")])
