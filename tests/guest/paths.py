"""Opens paths at all places of a page, of all lengths that may be wrong; prints how many opened, and errors."""

import ctypes
import errno
import json
import mmap
import os
from collections import Counter

LIBC = ctypes.CDLL(None, use_errno=True)
PAGE = mmap.PAGESIZE
NONE = 0


def opened(address: int) -> str:
    """Return what opening the path at an address gives: "open", or the error's name."""
    file = LIBC.open(ctypes.c_void_p(address), os.O_RDONLY)
    if file < 0:
        return errno.errorcode[ctypes.get_errno()]
    os.close(file)
    return "open"


def main() -> None:
    """Print the results as JSON: they are the same wherever a kernel reads paths rightly."""
    pages = mmap.mmap(-1, 4 * PAGE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    LIBC.mprotect(ctypes.c_void_p(start + 3 * PAGE), PAGE, NONE)  # what lies behind a path is not to be read
    end = start + 3 * PAGE
    found: dict[str, dict[str, int]] = {}
    for length in (1, 2, 63, 64, 255, PAGE - 2, PAGE - 1, PAGE, PAGE + 1):
        path = b"/" * (length - 3) + b"etc" if length > 3 else b"/" * length
        # Up to the last byte that may be read, across the end of a page, and without an end.
        places = [end - length - 1 - back for back in (0, 1, 7, 8, 9)]
        places += [start + PAGE - into for into in (1, 2, 8, length // 2) if into]
        results = []
        for place in places:
            ctypes.memset(start, 0x78, 3 * PAGE)  # "x" before and behind
            ctypes.memmove(place, path + b"\0", length + 1)
            results.append(opened(place))
        ctypes.memset(start, 0x2F, 3 * PAGE)
        results.append(opened(end - length))  # no end of it before the page that cannot be read
        found[str(length)] = Counter(results)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
