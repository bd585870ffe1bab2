"""A fabric as a command line declares it: `gpus=8` or `gpus=3+5`, a few counts, and the name of a WAN.

Mininet's `mn --topo` and the controller take the same words, so that both mean the same fabric.
"""

import re

from topologies.errors import FabricError, Mistake
from topologies.fabric import FabricSpec, even_split
from topologies.wan import WanSpec

_GPUS = re.compile(r"[0-9]{1,6}(\+[0-9]{1,6})*")


def declared(
    *,
    gpus: int | str = 8,
    leaves: int = 2,
    spines: int = 2,
    border_routers: int = 2,
    wan: str = "mesh",
) -> FabricSpec:
    """The fabric with these counts; `gpus` is a total to share out over two sites, or a number per site: "3+5".

    Raises FabricError for what is no such number; whether the fabric can be built is left to `build_fabric`.
    """
    text = str(gpus)
    if _GPUS.fullmatch(text) is None:
        wrong = f'"{text[:40]}" is no number of GPUs; give a total, or one number per site such as 3+5'
        raise FabricError([Mistake("fabric.gpus", wrong)])
    return FabricSpec(
        gpus_per_site=tuple(int(count) for count in text.split("+")) if "+" in text else even_split(int(text)),
        leaves=leaves,
        spines=spines,
        border_routers=border_routers,
        wan=WanSpec(preset=wan),
    )
