"""How loops are compiled: numba's options, and the switch that leaves it out.

Importing numba takes longer than many commands; so modules with compiled code are imported by the functions that call
them. With the environment variable LONGHAUL_COMPILE=0 the same source runs as plain Python, without numba.
"""

import os
from collections.abc import Callable
from typing import TypeVar

Function = TypeVar("Function", bound=Callable[..., object])


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
