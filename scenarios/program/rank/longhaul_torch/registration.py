"""Registers the backend with torch.distributed, and has it take the place of others where LONGHAUL_BACKEND says so."""

import functools
import os
import sys
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from . import meeting

NAME = "longhaul"
REPLACING = "LONGHAUL_BACKEND"


def register() -> None:
    """Register the backend once; with LONGHAUL_BACKEND=longhaul groups of other backends become groups of it.

    That variable counts when a group is made: torch may be loaded before, in a process from which ranks are forked.
    """
    if not dist.is_available() or NAME.upper() in dist.Backend._plugins:
        return

    def create(options: Any, backend_options: Any = None) -> Any:
        from .group import create  # only a program that makes a group pays for it

        return create(options, backend_options)

    dist.Backend.register_backend(NAME, create, extended_api=True, devices=["cpu"])
    for name in ("init_process_group", "new_group"):
        _replace(name, _redirected)
    _replace("monitored_barrier", _monitored)
    meeting.register()


def _replace(name: str, wrapper: Callable[[Any], Any]) -> None:
    """Wrap a function of torch.distributed in every module of torch that has imported it."""
    original = getattr(dist, name)
    wrapped = functools.wraps(original)(wrapper(original))
    for module in [one for key, one in list(sys.modules.items()) if key.startswith("torch.distributed")]:
        if vars(module).get(name) is original:
            setattr(module, name, wrapped)


def _redirected(original: Any) -> Any:
    position = 0 if original.__name__ == "init_process_group" else 2

    def call(*args: Any, **kwargs: Any) -> Any:
        wanted = os.environ.get(REPLACING)
        if not wanted:
            return original(*args, **kwargs)
        if wanted != NAME:
            raise ValueError(f'{REPLACING} is "{wanted}"; allowed: {NAME}')
        named = args[position] if len(args) > position else kwargs.get("backend")
        if named is None and dist.is_initialized():
            return original(*args, **kwargs)  # a new group has the backend of the default group
        if str(named).lower() in (NAME, "fake"):
            return original(*args, **kwargs)
        if len(args) > position:
            args = (*args[:position], NAME, *args[position + 1 :])
        else:
            kwargs["backend"] = NAME
        kwargs.pop("device_id", None)  # an accelerator, to which another backend would be bound
        _tell(named)
        return original(*args, **kwargs)

    return call


_TOLD = set[object]()


def _tell(named: object) -> None:
    """Say once on rank 0 which backend is replaced."""
    if os.environ.get("RANK", "0") == "0" and named not in _TOLD:
        _TOLD.add(named)
        what = "groups without a named backend have" if named is None else f'groups of the backend "{named}" have'
        print(f'longhaul: {what} the backend "{NAME}" instead ({REPLACING})', file=sys.stderr, flush=True)


def _monitored(original: Any) -> Any:
    def call(group: Any = None, timeout: Any = None, wait_all_ranks: bool = False) -> Any:
        chosen = group or dist.group.WORLD
        if getattr(chosen, "getBackendName", str)() == NAME:  # torch itself serves Gloo only
            return chosen.monitored_barrier(timeout, wait_all_ranks)
        return original(group, timeout, wait_all_ranks)

    return call
