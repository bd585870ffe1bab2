"""The GPU of a program's ranks: a model by name, or a table of its own. Pure, but for a file of kernel times.

[program]
gpu = "h100"
gpu = {model = "h100", efficiency = 0.6, launch = "2 us"}           # a model with other numbers
gpu = {flops = {float32 = 67e12, bfloat16 = 989e12}, bandwidth = 3.35e12}
kernels = "kernels.csv"                                             # measured times of kernels
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from scenarios.program.rank.longhaul_gpu import kernels, models
from scenarios.program.rank.longhaul_gpu.models import DTYPES, MODELS, Gpu
from scenarios.spec.values import Kind, numbers, one_of, quantity, texts
from topologies import units
from topologies.errors import Mistake, did_you_mean, format_value
from topologies.text_files import TextFileError, read_text

MAX_TABLE_BYTES = 64_000_000
"""Size of the largest table of kernel times, in bytes."""

_PEAK = numbers((int, float), 1e9, 1e18, "FLOP/s")
_SHARE = numbers((int, float), 0.01, 1)
_KINDS = {
    "model": one_of(*MODELS),
    "flops": _PEAK,
    "bandwidth": numbers((int, float), 1e9, 1e15, "byte/s"),
    "launch": quantity(units.DELAY, "4 us", (1e-9, 1.0)),
    "efficiency": _SHARE,
    "memory_efficiency": _SHARE,
    "memory": quantity(units.SIZE, "80 GB", (1_000_000, 10**15)),
}
_FIELDS = {
    "bandwidth": "bandwidth_bps",
    "launch": "launch_s",
    "efficiency": "efficiency",
    "memory_efficiency": "memory_efficiency",
    "memory": "memory_bytes",
}
_ALLOWED = f"{', '.join(MODELS)}, or a table of {', '.join(_KINDS)}"


def _read(given: str | dict[str, Any]) -> Gpu:
    if isinstance(given, str):
        if given not in MODELS:
            raise ValueError(f"{format_value(given)} is not known; allowed: {_ALLOWED}{did_you_mean(given, MODELS)}")
        return MODELS[given]
    for key in given:
        if key not in _KINDS:
            raise ValueError(f"{format_value(key)} is no key of a GPU; allowed: {', '.join(_KINDS)}")
    missing = [key for key in ("flops", "bandwidth") if key not in given and "model" not in given]
    if missing:
        raise ValueError(f"a GPU without a model has no {missing[0]}; allowed: flops and bandwidth, or a model")
    fields = dict[str, Any]()
    for key, value in given.items():
        try:
            if key == "flops":
                fields["flops"] = _read_peaks(value)
            elif key in _FIELDS:
                fields[_FIELDS[key]] = _KINDS[key].read(value)
            else:
                _KINDS[key].read(value)
        except ValueError as error:
            raise ValueError(f"its {key}: {error}") from None
    return replace(MODELS[given["model"]], **fields) if "model" in given else Gpu(**fields)


def _read_peaks(given: object) -> tuple[tuple[str, float], ...]:
    """Return peaks by dtype: one for all, or a table."""
    if not isinstance(given, dict):
        return (("float32", _PEAK.read(given)),)
    for dtype in given:
        if dtype not in DTYPES:
            raise ValueError(f"{format_value(dtype)} is no dtype; allowed: {', '.join(DTYPES)}")
    if "float32" not in given:
        raise ValueError("there is no float32; allowed: a peak for float32, and any others")
    return tuple((dtype, _PEAK.read(given[dtype])) for dtype in DTYPES if dtype in given)


def _write(gpu: Gpu) -> str | dict[str, Any]:
    """Return what `_read` reads: the name of a model, or a table of what is different from it."""
    base = None if gpu.base is None else MODELS[gpu.base]
    if base == gpu:
        return str(gpu.base)
    written: dict[str, Any] = {} if base is None else {"model": gpu.base}
    if base is None or gpu.flops != base.flops:
        written["flops"] = dict(gpu.flops)
    for key, field in _FIELDS.items():
        if base is None or getattr(gpu, field) != getattr(base, field):
            written[key] = _KINDS[key].write(getattr(gpu, field))
    return written


GPU = Kind(_ALLOWED, (str, dict), _read, _write, is_object=True)
"""The kind of GPUs."""

TABLE = texts(
    f"the path of a CSV file of {', '.join(kernels.COLUMNS)}, in printable text",
    lambda text: text and text.isprintable(),
    Path,
)
"""The kind of tables of kernel times."""


def check(gpu: Gpu | None, table: Path | None) -> Iterator[Mistake]:
    """Yield what is wrong with a table of kernel times."""
    if table is None:
        return
    if gpu is None:
        yield Mistake("program.kernels", f"needs a GPU; allowed: program.gpu, one of {', '.join(models.MODELS)}")
        return
    try:
        kernels.parse(read_text(table, most_bytes=MAX_TABLE_BYTES).splitlines())
    except TextFileError as error:
        yield Mistake("program.kernels", f"{table}: {error}")
    except ValueError as error:
        yield Mistake("program.kernels", f"{table}: {error}")
