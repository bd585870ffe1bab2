"""Whether the agents of a prompt have room for chunks of a size, in the memory that there is."""

from pathlib import Path

from scenarios.prompt.commands import PromptError
from topologies.scale import RateScale, ScaleError
from topologies.units import format_size

_COPIES = 4  # of a chunk that a GPU has at once: its own, the one that arrives, and what TCP holds on either side


def check_size(chunk_bytes: int, *, gpus: int, scale: RateScale) -> None:
    """Raise PromptError where nothing of a chunk would be carried, or more than there is memory for."""
    try:
        carried = scale.chunk_bytes(chunk_bytes)
    except ScaleError as error:
        raise PromptError(str(error)) from None
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    room = int(fields["MemAvailable"].split()[0]) * 1024 // (_COPIES * gpus)
    if carried > room:
        most = format_size(room * scale.divisor // 10**6 * 10**6)
        raise PromptError(f"{format_size(chunk_bytes)} does not fit the memory there is: allowed is up to {most}")
