"""Text in columns: those without a single cell are left out, and reasons for the empty cells of others can be told."""

from collections.abc import Collection, Iterable, Sequence

from topologies.errors import list_first

_MOST = 4  # rows that are named
EMPTY = "-"
"""What stands in a cell that has nothing to tell."""


def aligned(rows: Sequence[Sequence[str]], left: Collection[int] = ()) -> list[str]:
    """Return a line for each row, the first of which has the headings; a column with no cell below its heading is left
    out. The columns with indices in `left` are left-aligned, the others right-aligned."""
    columns = [column for column in enumerate(zip(*rows, strict=True)) if len(rows) == 1 or any(column[1][1:])]
    widths = [max(map(len, cells)) for _, cells in columns]
    lines = zip(*(cells for _, cells in columns), strict=True)
    return [
        "  ".join(
            cell.ljust(width) if number in left else cell.rjust(width)
            for (number, _), cell, width in zip(columns, line, widths, strict=True)
        ).rstrip()
        for line in lines
    ]


def told(cells: Sequence[str], name: str, whys: Iterable[str], rows: Sequence[str] = ()) -> tuple[list[str], list[str]]:
    """Return the cells of a column with EMPTY in those that are empty, and a line on why they are, given the name of
    the column, for each cell why it would be empty, and, if rows have names, that of its row: of several reasons each
    then has its rows. A column that is empty throughout stays so."""
    if not any(cells):
        return [*cells], []
    reasons = dict[str, dict[str, None]]()
    for cell, why, row in zip(cells, whys, rows or [""] * len(cells), strict=True):
        if not cell:
            reasons.setdefault(why, {})[row] = None
    is_told = bool(rows) and len(reasons) > 1
    where = {why: f"in {list_first([*those], _MOST)}: " * is_told for why, those in reasons.items()}
    line = f"{EMPTY} under {name}: {'; '.join(f'{where[why]}{why}' for why in reasons)}"
    return [cell or EMPTY for cell in cells], [line] * bool(reasons)
