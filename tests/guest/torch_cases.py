"""Runs in each rank of a test: ``torch_cases.py SEED CASES``: random collectives and messages, compared with Gloo's.

The default group is Gloo's. Prints one line per difference, and the number of cases that ran.
"""

import random
import sys
from datetime import timedelta
from itertools import combinations
from typing import Any

import torch
import torch.distributed as dist

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
WHOLES = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8]
COPIED = [*FLOATS, *WHOLES, torch.bool, torch.complex64, torch.complex128]
EPSILON = {torch.float32: 2e-6, torch.float64: 4e-15, torch.bfloat16: 8e-2, torch.float16: 1e-2}
OPS = ["SUM", "PRODUCT", "MIN", "MAX"]
BITS = ["BAND", "BOR", "BXOR"]
FOR_GLOO = {torch.int16: torch.int32, torch.bool: torch.uint8}
"""Gloo lacks some types. It gets the same numbers in wider ones, which wrap around alike."""

KINDS = [
    *("all_reduce", "all_reduce", "reduce", "broadcast", "all_gather", "all_gather_into", "reduce_scatter"),
    *("reduce_scatter_tensor", "all_to_all", "all_to_all_single", "all_to_all_uneven", "gather", "scatter"),
    *("messages", "tags", "objects", "coalesced"),
]
SIZES = [0, 1, 2, 3, 7, 64, 1000, 4099, 70_000]


class Case:
    """A random case, drawn alike on all ranks; the contents of tensors differ by rank."""

    def __init__(self, draw: random.Random, rank: int, groups: list[tuple[list[int], Any, Any]]) -> None:
        self.draw = draw
        self.ranks, self.gloo, self.ours = draw.choice(groups)
        self.is_mine = rank in self.ranks
        self.place = self.ranks.index(rank) if self.is_mine else -1
        self.seed = draw.getrandbits(32)
        self._made = 0

    def tensor(self, dtype: Any, size: int, *, plain: bool) -> tuple[Any, Any]:
        """Return two equal tensors, the first for Gloo, which wants them contiguous.

        The second, unless `plain`, is a view with gaps, transposed, or has no dimension.
        """
        wide = FOR_GLOO.get(dtype, dtype)
        self._made += 1
        numbers = torch.Generator().manual_seed(hash((self.seed, self.place, self._made)) % 2**40)
        if plain:
            whole = self._filled(dtype, (size,), numbers)
            return whole.to(wide, copy=True), whole
        if size == 1:
            whole = self._filled(dtype, (), numbers)
            return whole.to(wide, copy=True), whole
        rows = next(rows for rows in (7, 4, 3, 2, 1) if size % rows == 0)
        whole = self._filled(dtype, (size // rows, 2 * rows), numbers)
        mine = whole[:, ::2].t()
        return mine.to(wide, copy=True).contiguous(), mine

    def _filled(self, dtype: Any, shape: tuple[int, ...], numbers: Any) -> Any:
        if dtype == torch.bool:
            return torch.rand(shape, generator=numbers) < 0.5
        if dtype.is_complex:
            return torch.randn(shape, generator=numbers, dtype=dtype)
        if dtype.is_floating_point:
            return (torch.rand(shape, generator=numbers) * 2 - 1).to(dtype)
        return torch.randint(0, 100, shape, generator=numbers).to(dtype)


def same(kind: str, op: str, mine: Any, theirs: Any) -> str | None:
    """Return how two results differ, None if they do not."""
    if mine.dtype in EPSILON and op in ("SUM", "PRODUCT", "AVG"):
        limit = EPSILON[mine.dtype]
        if torch.allclose(mine.double(), theirs.double(), rtol=limit, atol=limit):
            return None
    elif torch.equal(mine, theirs.to(mine.dtype)):
        return None
    return f"{kind} {op} of {mine.dtype} {tuple(mine.shape)}: {mine.flatten()[:4]} is not {theirs.flatten()[:4]}"


def run(case: Case) -> list[str | None]:
    """Run a case with both backends; return how the results differ."""
    draw, n = case.draw, len(case.ranks)
    kind = draw.choice(KINDS)
    reduces = kind in ("all_reduce", "reduce", "reduce_scatter", "reduce_scatter_tensor", "coalesced")
    dtype = draw.choice(FLOATS + WHOLES if reduces else COPIED[:-2] if kind in ("gather", "scatter") else COPIED)
    op = draw.choice(OPS + (BITS if dtype in WHOLES else ["AVG"] if dtype in FLOATS else [])) if reduces else ""
    size, plain, root, is_async = draw.choice(SIZES), draw.random() < 0.6, draw.randrange(n), draw.random() < 0.3
    uneven = [[draw.choice([0, 1, 5, 300]) for _ in range(n)] for _ in range(n)]
    if not case.is_mine or (kind in ("messages", "tags") and n == 1):
        return []
    me, first = case.place, case.ranks[root]
    reduction = getattr(dist.ReduceOp, op or "SUM")

    def both(call: Any) -> None:
        for group, which in ((case.gloo, 0), (case.ours, 1)):
            work = call(group, which, is_async)
            if is_async:
                work.wait()

    if kind in ("all_reduce", "reduce", "broadcast"):
        a = case.tensor(dtype, size, plain=plain)
        if op == "AVG":
            dist.all_reduce(a[0], group=case.gloo)
            a[0].div_(n)
            dist.all_reduce(a[1], op=reduction, group=case.ours)
            kind = "all_reduce"
        elif kind == "all_reduce":
            both(lambda g, k, w: dist.all_reduce(a[k], op=reduction, group=g, async_op=w))
        elif kind == "reduce":
            before = a[1].clone()
            both(lambda g, k, w: dist.reduce(a[k], first, op=reduction, group=g, async_op=w))
            if me != root:
                return [same(kind, "", a[1], before)]
        else:
            both(lambda g, k, w: dist.broadcast(a[k], first, group=g, async_op=w))
        return [same(kind, op, a[1], a[0])]
    if kind in ("all_gather", "gather"):
        a = case.tensor(dtype, size, plain=plain)
        outs = [[torch.zeros_like(one) for _ in range(n)] for one in a]
        if kind == "all_gather":
            both(lambda g, k, w: dist.all_gather(outs[k], a[k], group=g, async_op=w))
        else:
            both(lambda g, k, w: dist.gather(a[k], outs[k] if me == root else None, dst=first, group=g, async_op=w))
        return [same(kind, "", b, c) for b, c in zip(outs[1], outs[0], strict=True)]
    if kind == "all_gather_into":
        a = case.tensor(dtype, size, plain=True)
        out = [torch.zeros(size * n, dtype=one.dtype) for one in a]
        both(lambda g, k, w: dist.all_gather_into_tensor(out[k], a[k], group=g, async_op=w))
        return [same(kind, "", out[1], out[0])]
    if kind in ("reduce_scatter", "reduce_scatter_tensor"):
        # The oracle: Gloo's AllReduce of everything, of which each rank takes its part.
        a = case.tensor(dtype, size * n, plain=True)
        before, out = a[1].clone(), torch.zeros(size, dtype=dtype)
        dist.all_reduce(a[0], op=dist.ReduceOp.SUM if op == "AVG" else reduction, group=case.gloo)
        parts = a[1].view(n, size)
        if kind == "reduce_scatter":
            dist.reduce_scatter(out, list(parts), op=reduction, group=case.ours)
        else:
            dist.reduce_scatter_tensor(out, a[1], op=reduction, group=case.ours)
        expected = a[0].view(n, size)[me]
        return [same(kind, op, out, expected / n if op == "AVG" else expected), same(kind, "", a[1], before)]
    if kind in ("all_to_all", "all_to_all_single", "all_to_all_uneven"):
        sizes = uneven if kind == "all_to_all_uneven" else [[size] * n] * n
        sent, come = sizes[me], [row[me] for row in sizes]
        a = case.tensor(dtype, sum(sent), plain=True)
        outs2 = [torch.zeros(sum(come), dtype=one.dtype) for one in a]
        if kind == "all_to_all":
            lists = [(list(o.split(come)), list(i.split(sent))) for o, i in zip(outs2, a, strict=True)]
            # Gloo has no all_to_all of lists in every version.
            dist.all_to_all_single(outs2[0], a[0], come, sent, group=case.gloo)
            dist.all_to_all(*lists[1], group=case.ours)
        else:
            both(lambda g, k, w: dist.all_to_all_single(outs2[k], a[k], come, sent, group=g, async_op=w))
        return [same(kind, "", outs2[1], outs2[0])]
    if kind == "scatter":
        a = case.tensor(dtype, size * n, plain=True)
        out = [torch.zeros(size, dtype=one.dtype) for one in a]
        both(
            lambda g, k, w: dist.scatter(
                out[k], list(a[k].view(n, size)) if me == root else None, src=first, group=g, async_op=w
            )
        )
        return [same(kind, "", out[1], out[0])]
    if kind == "messages":
        a = case.tensor(dtype, size, plain=plain)
        out = [torch.zeros_like(one) for one in a]
        to, source = case.ranks[(me + 1) % n], case.ranks[me - 1]
        for k, group in ((0, case.gloo), (1, case.ours)):
            swaps = [dist.P2POp(dist.isend, a[k], to, group), dist.P2POp(dist.irecv, out[k], source, group)]
            for work in dist.batch_isend_irecv(swaps):
                work.wait()
        return [same(kind, "", out[1], out[0])]
    if kind == "tags":
        a, b = case.tensor(dtype, size, plain=plain), case.tensor(dtype, 3, plain=True)
        outs = [[torch.zeros_like(one), torch.zeros_like(other)] for one, other in zip(a, b, strict=True)]
        to, source = case.ranks[(me + 1) % n], case.ranks[me - 1]
        for k, group in ((0, case.gloo), (1, case.ours)):
            sending = [dist.isend(a[k], to, group, 5), dist.isend(b[k], to, group, 6)]
            found_of = dist.recv(outs[k][1], source if plain or n > 2 else None, group, 6)
            dist.recv(outs[k][0], source, group, 5)
            for message in sending:
                message.wait()
            if found_of != source:
                return [f"a message of rank {found_of}, not {source}"]
        return [same(kind, "", mine, theirs) for mine, theirs in zip(outs[1], outs[0], strict=True)]
    if kind == "objects":
        found: list[list[Any]] = [[None] * n, [None] * n]
        for k, group in ((0, case.gloo), (1, case.ours)):
            dist.all_gather_object(found[k], {"rank": me, "text": "x" * (me * size % 1000)}, group=group)
        box = [["from", first] if me == root else None]
        dist.broadcast_object_list(box, first, group=case.ours)
        return [None if found[0] == found[1] and box == [["from", first]] else f"objects {found} {box}"]
    several = [case.tensor(dtype, one, plain=True) for one in (size, 3, size)]
    with dist._coalescing_manager(group=case.ours):
        for _, mine in several:
            dist.all_reduce(mine, op=reduction, group=case.ours)
    for theirs, _ in several:
        dist.all_reduce(theirs, op=dist.ReduceOp.SUM if op == "AVG" else reduction, group=case.gloo)
        if op == "AVG":
            theirs.div_(n)
    return [same(kind, op, mine, theirs) for theirs, mine in several]


def main() -> None:
    """Run the cases."""
    seed, cases = int(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank, size = dist.get_rank(), dist.get_world_size()
    draw = random.Random(seed)
    subsets = [list(one) for count in range(1, size + 1) for one in combinations(range(size), count)]
    chosen = [list(range(size)), *draw.sample(subsets, min(6, len(subsets)))]
    groups = [
        (ranks, dist.new_group(ranks, backend="gloo"), dist.new_group(ranks, backend="longhaul")) for ranks in chosen
    ]
    ran = 0
    for number in range(cases):
        case = Case(random.Random(f"{seed} {number}"), rank, groups)
        for difference in run(case):
            if difference is not None:
                print(f"case {number}: {difference}", flush=True)
        ran += case.is_mine
    dist.barrier()
    dist.destroy_process_group()
    print(f"{ran} cases", flush=True)


if __name__ == "__main__":
    main()
