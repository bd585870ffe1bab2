"""A configuration in words, as tables, figures and messages name it."""

from scenarios.spec.keys import KEYS
from scenarios.spec.scenario import Scenario
from topologies.units import format_delay, format_size

_IN_EVERY_LABEL = ("fabric.gpus", "collective.chunk", "conditions.wan_delay")


def label(setting: Scenario) -> str:
    """A configuration in words: "8 GPUs, 64 MB, 10 us", then the values of other swept keys and of the wall clock.

    A single number of GPUs means two sites with half of them each; other fabrics are listed by site, "4+4+4+4 GPUs".
    """
    chunk, delay = format_size(setting.collective.chunk_bytes), format_delay(setting.conditions.wan_delay_s)
    sites = setting.fabric.gpus_per_site
    gpus = setting.gpus if sites == sites[:1] * 2 else "+".join(map(str, sites))
    words = [f"{gpus} GPUs", chunk, delay]
    for key, value in setting.at:
        if key not in _IN_EVERY_LABEL:
            written = KEYS[key].write(value)
            name = key.partition(".")[2].replace("_", " ")
            words.append(f"{name} {str(written).lower() if isinstance(written, bool) else written}")
    if setting.run.is_real:
        scale = setting.run.scale
        carried = format_size(scale.chunk_bytes(setting.collective.chunk_bytes))
        words.append("wall clock" if scale.divisor == 1 else f"wall clock at {scale} of the rates with {carried}")
    return ", ".join(words)
