"""Marks in the output of a program's ranks, at which faults begin. Pure."""

from collections.abc import Iterator, Sequence

from scenarios.spec.faults import Fault

_MOST_BYTES = 65_536  # of a line that is kept until it is complete


class Marks:
    """Looks for the marks of faults in the lines that ranks print on stdout; each mark is found once.

    A line has a mark if it contains its words; any white space between them counts as one space.
    """

    def __init__(self, faults: Sequence[Fault]) -> None:
        marks = ((index, fault) for index, fault in enumerate(faults) if fault.mark is not None)
        self._awaited = {index: (fault.mark_rank, (fault.mark or "").encode()) for index, fault in marks}
        self._unfinished: dict[int, bytes] = {}

    def found(self, rank: int, output: bytes) -> Iterator[int]:
        """Yield the indices of the faults whose marks are in the lines that this output of a rank completes. Empty
        output is the end of it, which completes its last line."""
        if not self._awaited:
            return
        *lines, rest = (self._unfinished.pop(rank, b"") + output).split(b"\n")
        if output:
            self._unfinished[rank] = rest[-_MOST_BYTES:]
        else:
            lines.append(rest)
        for line in lines:
            plain = b" ".join(line.split())
            for index, (only, words) in [*self._awaited.items()]:
                if only in (None, rank) and words in plain:
                    del self._awaited[index]
                    yield index
