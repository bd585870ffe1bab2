"""User-defined policies: Python that decides before every collective what is chosen again, or chooses it.

A function, or an object of a class, is called with a `Situation` and returns two things: whether to choose paths, or
the paths of some pairs of ranks; and whether to choose the placement, or the placement itself.
"""

import copy
import io
import runpy
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from controller.routing.wan_path_choice import NoPathError
from scenarios.policies.situation import NAMES, Action, Situation
from topologies.errors import Mistake, SpecError, did_you_mean, format_value

_RESULTS = "two booleans, whether to choose paths and the placement, or paths by pair of ranks and a placement"


def split_reference(text: str) -> tuple[Path, str]:
    """Split "FILE:NAME" into file and function name; raises ValueError whose message continues a sentence about it."""
    path, colon, name = text.rpartition(":")
    if not (colon and path and name.isidentifier() and path.isprintable()):
        raise ValueError("is not understood; allowed: FILE:NAME, a Python file and a function or class in it")
    return Path(path), name


@lru_cache(maxsize=16)
def check(text: str) -> None:
    """Check that the function or class "FILE:NAME" can be loaded; raises ValueError as `loaded` does."""
    loaded(text)


def loaded(text: str) -> Callable[..., Any]:
    """Run a file and return the function or class "FILE:NAME"; raises ValueError whose message continues a sentence
    about it."""
    path, name = split_reference(text)
    try:
        with redirect_stdout(sys.stderr):  # stdout is for results
            names = runpy.run_path(str(path), run_name=path.stem)  # the user asked to run this file
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from None
    except SyntaxError as error:
        raise ValueError(f"is not Python: {error.msg} in line {error.lineno}") from None
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        raise ValueError(f"fails when loaded: {type(error).__name__}: {error}") from None
    policy = names.get(name)
    if not callable(policy):
        module = names["__name__"]  # without what the file imports
        functions = [
            one for one, value in names.items() if callable(value) and getattr(value, "__module__", "") == module
        ]
        allowed = f"; allowed: {', '.join(functions)}" if functions else ", nor any other"
        raise ValueError(f"has no function {format_value(name)}{did_you_mean(name, functions) or allowed}")
    if isinstance(policy, type) and not any("__call__" in vars(base) for base in policy.__mro__):
        raise ValueError(f"has a class {format_value(name)} without a method __call__(self, now); allowed: one with it")
    return policy  # type: ignore[no-any-return]


class _Lines(io.TextIOBase):
    """A stream that writes every line on stderr after some words; the last one need not end."""

    def __init__(self, words: str) -> None:
        self._words, self._begun = words, False

    def write(self, text: str) -> int:
        for part in text.splitlines(keepends=True):
            sys.stderr.write(part if self._begun else f"{self._words}{part}")
            self._begun = not part.endswith("\n")
        return len(text)


def _why(error: BaseException) -> str:
    """Return an error of a policy in words: an attribute that what it is given lacks without the name of a class."""
    if isinstance(error, AttributeError) and type(error.obj).__module__.startswith("scenarios."):
        is_now = isinstance(error.obj, Situation)
        known = NAMES if is_now else [name for name in dir(error.obj) if not name.startswith("_")]
        what = "now" if is_now else "what now gives"
        hint = did_you_mean(str(error.name), known) or f"; allowed: {', '.join(known)}"
        return f"{what} has no {error.name}{hint}"
    return str(error)


class UserPolicy:
    """The policy "FILE:NAME" as one player asks it. Its file is run when it is first asked, so all that it keeps begins
    anew with each player.

    If it `repeats`, a collective may be asked about again because an attempt was lost. An object is then put back to
    the state before the first time, so that it never sees the lost attempt.
    """

    def __init__(self, text: str, *, repeats: bool = False) -> None:
        self._text, self._repeats = text, repeats
        self._policy: Callable[[Situation], Any] | None = None
        self._before: tuple[int, Callable[[Situation], Any]] | None = None

    def ask(self, now: Situation) -> Action:
        """Ask what to choose. Raises SpecError if the policy fails or returns something else, NoPathError if it reads a
        time that does not exist because failed cables leave a flow without a path."""
        try:
            with redirect_stdout(_Lines(f"{split_reference(self._text)[1]}, collective {now.number}: ")):
                choices = self._prepared(now)(now)
        except NoPathError:  # caused by the failed cables and not by the policy
            raise
        except (Exception, KeyboardInterrupt, SystemExit) as error:  # an interrupted run raises no KeyboardInterrupt
            file, frames = str(split_reference(self._text)[0]), traceback.extract_tb(error.__traceback__)
            lines = [frame.lineno for frame in frames if frame.filename == file]
            line = f", line {lines[-1]}" if lines else ""  # no line if the function does not accept the argument
            raise _error(self._text, now, f"{type(error).__name__}: {_why(error)}{line}") from None
        is_pair = isinstance(choices, tuple) and len(choices) == 2
        if not (is_pair and _is_choice(choices[0], _are_paths) and _is_choice(choices[1], _are_ranks)):
            allowed = (
                "two booleans, whether to choose paths and the placement, or paths by pair of ranks and a placement"
            )
            raise _error(self._text, now, f"it returned {format_value(choices)}; allowed: a tuple of {allowed}")
        try:
            return _action(now, *choices)
        except NoPathError:
            raise
        except ValueError as error:
            raise _error(self._text, now, f"it returned {format_value(choices)}; allowed: {error}") from None

    def _prepared(self, now: Situation) -> Callable[[Situation], Any]:
        """Return what to call, an object in the state before this collective."""
        if self._policy is None:
            policy = loaded(self._text)
            self._policy = policy() if isinstance(policy, type) else policy
        if self._repeats:
            if self._before is not None and self._before[0] == now.number:
                self._policy = self._before[1]
            self._before = now.number, copy.deepcopy(self._policy)
        return self._policy


def _is_choice(value: Any, is_given: Callable[[Any], bool]) -> bool:
    return isinstance(value, bool | np.bool_) or is_given(value)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _are_ranks(value: Any) -> bool:
    return isinstance(value, Sequence | np.ndarray) and not isinstance(value, str) and all(map(_is_whole, value))


def _are_paths(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(pair, tuple) and len(pair) == 2 and all(map(_is_whole, (*pair, path)))
        for pair, path in value.items()
    )


def _action(now: Situation, routes: Any, embeds: Any) -> Action:
    """Return the action that two results of a function ask for: booleans, or the paths and the placement themselves."""
    is_given = not isinstance(embeds, bool | np.bool_)
    placement = now.place(embeds) if is_given else now.placed if embeds else None
    if isinstance(routes, Mapping):
        given = {(int(src), int(dst)): int(index) for (src, dst), index in routes.items()}
        return Action(placement, now.route(placement or now.in_force.placement, given))
    if is_given and placement is not None:
        return Action(placement, now.route(placement, {}))
    if placement is not None:
        return Action(placement, now.newly_routed)
    return Action(routing=now.rerouted) if routes or now.cables_changed else Action()


def _error(text: str, situation: Situation, why: str) -> SpecError:
    path, name = split_reference(text)
    return SpecError([Mistake("policy", f"{path.name}:{name}, before collective {situation.number}: {why}")])
