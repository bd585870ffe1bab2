"""The class of admitted transfers that share links with other traffic, if none is declared for them. Pure.

A promise holds whatever else sends if ports serve the transfers before everything else. So without a class of their own
they get one, which all ports that they share with other traffic serve first.
"""

from collections.abc import Sequence
from dataclasses import replace

from scenarios.spec.classes import MAX_CLASSES, ClassSpec, dscp_of, in_order
from scenarios.spec.jobs import TRANSFER, JobSpec

_NAME = "transfers"


def with_own_class(
    jobs: Sequence[JobSpec], classes: Sequence[ClassSpec]
) -> tuple[tuple[JobSpec, ...], tuple[ClassSpec, ...]]:
    """Return the jobs with all transfers in a class of their own, and all classes: this one is served first.

    Nothing changes if a transfer has a class, or if there are as many classes as possible.
    """
    has_class = any(job.traffic_class is not None for job in jobs if job.kind == TRANSFER)
    if has_class or len(classes) >= MAX_CLASSES:
        return tuple(jobs), tuple(classes)
    names = {one.name for one in classes}
    name = next(name for n in range(1, len(names) + 2) if (name := _NAME if n == 1 else f"{_NAME}{n}") not in names)
    later = in_order(tuple(classes))
    if later and later[0].priority == 0:
        later = tuple(replace(one, priority=number) for number, one in enumerate(later, 1))
    of_transfers = [replace(job, traffic_class=name) if job.kind == TRANSFER else job for job in jobs]
    return tuple(of_transfers), (ClassSpec(name=name, priority=0, is_added=True), *later)


def told(classes: tuple[ClassSpec, ...], *, beside_program: bool) -> str:
    """Return the sentence on the class that `with_own_class` has added, "" if it has added none."""
    added = next((one for one in classes if one.is_added), None)
    if added is None:
        return ""
    dscp = dscp_of(classes, added.name)
    program = f"; a program's packets with the DSCP {dscp} would be of this class, too" if beside_program else ""
    return (
        f"promised transfers have a class of their own, {added.name} (DSCP {dscp}), which every link that they share "
        f"with other traffic serves first{program}"
    )
