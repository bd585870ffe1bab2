"""How the fuzz tests run: how many inputs, what is a hang and what is too much memory; and how inputs are made.

`LONGHAUL_FUZZ=10000 python -m pytest tests/test_fuzz*.py` tries ten thousand inputs each instead of a hundred.
"""

import os
import signal
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

EXAMPLES = int(os.environ.get("LONGHAUL_FUZZ", "100"))
HANG_S = 20  # for what takes milliseconds, on a machine that is busy
MEMORY_BYTES = 64 << 20

fuzzed = settings(
    max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True, database=None
)


@contextmanager
def bounded() -> Iterator[None]:
    """Fail where what is done within does not end, or takes more memory than anything so small can need."""

    def hung(_number: int, _frame: FrameType | None) -> None:
        raise AssertionError(f"it has not ended after {HANG_S} s")

    before = signal.signal(signal.SIGALRM, hung)
    signal.setitimer(signal.ITIMER_REAL, HANG_S)
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert peak < MEMORY_BYTES, f"it took {peak:,} bytes"


def one_line(error: BaseException) -> None:
    """An error's message is one line that can be shown, and not a long one."""
    text = str(error)
    assert text and "\n" not in text and len(text) < 2000, text


@st.composite
def mutated(draw: st.DrawFn, seeds: list[bytes], words: list[bytes]) -> bytes:
    """One of the seeds with a few bytes changed, cut out, doubled, or replaced by words of the format."""
    data = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(0, 6))):
        at = draw(st.integers(0, len(data)))
        end = draw(st.integers(at, min(len(data), at + 40)))
        change = draw(st.integers(0, 5))
        if change == 0:
            data[at:end] = draw(st.binary(max_size=8))
        elif change == 1:
            data[at:end] = b""
        elif change == 2:
            data[at:at] = data[at:end] * draw(st.integers(1, 20))
        elif change == 3:
            data[at:end] = draw(st.sampled_from(words))
        elif change == 4:
            del data[at:]
        elif at < len(data):
            data[at] ^= 1 << draw(st.integers(0, 7))
    return bytes(data)


def anything(words: list[bytes]) -> st.SearchStrategy[bytes]:
    """Bytes at random, and words of the format one after the other."""
    return st.binary(max_size=300) | st.lists(st.sampled_from(words), max_size=40).map(b"".join)


def json_values(names: list[str]) -> st.SearchStrategy[Any]:
    """Values that JSON can hold, with these names among an object's keys, and numbers of every size."""
    numbers = st.integers() | st.integers(-(10**30), 10**30) | st.floats() | st.sampled_from([2**63, 10**300, -0.0])
    leaves = st.none() | st.booleans() | numbers | st.text(max_size=20) | st.sampled_from(names)
    keys = st.sampled_from(names) | st.text(max_size=5)
    return st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(keys, inner), max_leaves=30)
