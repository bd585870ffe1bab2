"""How loops are compiled: numba's options, and the switch that leaves it out.

Importing numba takes longer than many commands; so modules with compiled code are imported by the functions that call
them. With the environment variable LONGHAUL_COMPILE=0 the same source runs as plain Python, without numba.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

Function = TypeVar("Function", bound=Callable[..., object])


FLUID = Path(__file__).with_name("fluid_jit.py")
"""The module of flows that share links: compiling it takes a minute, several on a busy machine."""


def awaits_compiling(module: Path) -> bool:
    """Return whether the first use of a module with compiled code will compile it, or is compiling it: numba's cache
    beside it has none of its functions yet, or those of an earlier source."""
    if os.environ.get("LONGHAUL_COMPILE") == "0":
        return False
    cached, changed_s = module.parent / "__pycache__", module.stat().st_mtime
    return not any(index.stat().st_mtime >= changed_s for index in cached.glob(f"{module.stem}.*.nbi"))


def compiled(function: Function, **options: bool) -> Function:
    """Compile a function with these options of numba."""
    if os.environ.get("LONGHAUL_COMPILE") == "0":
        return function
    from numba import njit

    return njit(error_model="numpy", nogil=True, **options)(function)  # type: ignore[call-overload,no-any-return]


def compiled_entry(function: Function) -> Function:
    """Compile a function with all functions that it calls, and cache the machine code on disk."""
    return compiled(function, cache=True)


def compiled_without_refcounts(function: Function) -> Function:
    """Compile a function that allocates nothing, inlined and without reference counts.

    Counts cost two atomic operations at every access to an array in a tuple, and made everything ten times as slow. A
    call passes every tuple by value, hundreds of numbers; without `forceinline`, whether LLVM inlines a function
    depends on how often it is called, and one more call made the loop up to eight times slower.
    """
    return compiled(function, _nrt=False, forceinline=True)
