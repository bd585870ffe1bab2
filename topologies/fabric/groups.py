"""The part of a fabric that a group of GPUs uses, as a fabric of its own: so what is chosen for all GPUs can be chosen
for some."""

from collections.abc import Sequence
from dataclasses import replace

from topologies.fabric.fabric import Fabric, first_cycle


def in_order_of_sites(fabric: Fabric, gpus: Sequence[int], *, first: int | None = None) -> tuple[int, ...]:
    """Return the GPUs of a group (ranks of the fabric) site by site, as `part_of` numbers them: in ascending order, or
    with one of them, `first`, and its site before the others."""
    sites = fabric.gpu_sites
    return tuple(
        sorted(gpus, key=lambda gpu: (first is not None and sites[gpu] != sites[first], sites[gpu], gpu != first, gpu))
    )


def part_of(fabric: Fabric, gpus: Sequence[int]) -> Fabric:
    """Return the fabric with these GPUs alone, which are given site by site: the new ranks 0, 1, ...

    Sites without such GPUs are left out, and the others numbered in the given order. Links and paths keep their
    indices, so that conditions and chosen paths are those of the whole fabric. Its switches and cables are those of the
    whole fabric. Raises ValueError if the GPUs of a site are not given one after the other.
    """
    if tuple(gpus) == tuple(range(len(fabric.gpus))):
        return fabric
    sites = list(dict.fromkeys(fabric.gpus[gpu].site for gpu in gpus))
    members = [replace(fabric.gpus[gpu], rank=rank) for rank, gpu in enumerate(gpus)]
    members = [replace(gpu, site=sites.index(gpu.site)) for gpu in members]
    if [gpu.site for gpu in members] != sorted(gpu.site for gpu in members):
        raise ValueError(
            f"the GPUs {list(gpus)} are not in the order of their sites; allowed: one site after the other"
        )
    count, number = len(sites), {site: index for index, site in enumerate(sites)}
    # Those of other sites keep their indices, and lead nowhere here.
    paths = [
        replace(path, src_site=number.get(path.src_site, -1), dst_site=number.get(path.dst_site, -1))
        for path in fabric.paths
    ]
    between = {
        (a, b): tuple(paths[path.index] for path in fabric.paths_between.get((sites[a], sites[b]), ()))
        for a in range(count)
        for b in range(count)
        if a != b
    }
    sizes = tuple(sum(gpu.site == site for gpu in members) for site in range(count))
    return replace(
        fabric,
        spec=replace(fabric.spec, gpus_per_site=sizes),
        gpus=tuple(members),
        paths=tuple(paths),
        paths_between=between,
        site_cycle=first_cycle(count, between),
    )
