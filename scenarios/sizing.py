"""Sizing of a datacenter for training, beside a document's numbers: `run.py sizing`.

`analysis.sizing` has the formulas and names the document. Every input can be changed; the document's numbers stay
beside those of its two models, so that the difference is then what the change does.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scenarios.experiment.options import BAD_USAGE, DONE

if TYPE_CHECKING:
    from analysis.sizing import Datacenter, Model, Row

_MOST_MONEY, _MOST_WHOLE = 1e15, 100_000_000


def main(arguments: Sequence[str]) -> int:
    """Print the tables; return the exit status."""
    asked = parser().parse_args(arguments)
    from analysis.sizing import PRECISIONS, TOKENS_PER_PARAMETER, rows
    from scenarios.experiment.place import check_figure

    try:
        check_figure(asked.figure)
        at, models = _datacenter(asked), _models(asked)
        _check("tokens_per_parameter", asked.tokens_per_parameter, _MOST_WHOLE)
        ratio = asked.tokens_per_parameter or TOKENS_PER_PARAMETER
        found = list(rows(at, models, PRECISIONS[asked.precision], tokens_per_parameter=ratio))
    except ValueError as error:
        print(f"run.py sizing: {error}", file=sys.stderr)
        return BAD_USAGE
    inputs = {"datacenter": asdict(at), "precision": asked.precision, "models": [asdict(model) for model in models]}
    inputs["tokens_per_parameter"] = ratio
    text = json.dumps({**inputs, "rows": [asdict(row) | {"difference": row.difference} for row in found]}, indent=1)
    print(text if asked.json else "\n".join(_table(found)))
    if asked.figure is not None:
        from analysis.figures.sizing import picture

        names = " and ".join(model.name for model in models)
        title = f"{at.number_of_racks:,} racks of {at.gpus_per_rack} GPUs, {names}, {asked.precision}"
        picture(found, title=title).write_to(asked.figure, command="run.py sizing", answer=text)
    return DONE


def parser() -> argparse.ArgumentParser:
    """The options."""
    found = argparse.ArgumentParser(
        prog="run.py sizing",
        description="A datacenter for training a very large language model: its size, and what a step takes.",
        allow_abbrev=False,
    )
    add = found.add_argument
    add("--budget", type=float, metavar="DOLLARS", help="of the datacenter (default 100e9)")
    add("--compute-share", type=float, metavar="SHARE", help="of the budget that buys racks (default 0.7)")
    add("--rack-price", type=float, metavar="DOLLARS", help="(default 3e6)")
    add("--racks", type=int, metavar="N", help="(default 23,200, or what a budget that is given buys)")
    add("--gpus-per-rack", type=int, metavar="N", help="(default 72)")
    add("--rack-pflops", type=float, metavar="N", help="of a rack in fp4 (default 1440)")
    add("--rack-memory", metavar="SIZE", help='(default "13.5 TB")')
    add("--rack-power", type=float, metavar="KW", help="(default 120)")
    add("--nvlink", metavar="RATE", help='of a GPU within its rack (default "14.4 Tbit/s")')
    add("--nic", metavar="RATE", help='of a GPU to other racks (default "800 Gbit/s")')
    add("--precision", choices=("fp4", "fp8", "fp16"), default="fp4", help="of computing and sending (default fp4)")
    add("--layers", type=int, metavar="N", help="of a model of your own, with --hidden (default: the document's two)")
    add("--hidden", type=int, metavar="N", help="its hidden dimension")
    add("--heads", type=int, metavar="N", help="(default 280)")
    add("--vocabulary", type=int, metavar="N", help="(default 256,000)")
    add("--sequence", type=int, metavar="TOKENS", help="(default 32,768, and 32,000 in messages)")
    add("--tokens-per-parameter", type=float, metavar="N", help="of the largest models (default 1,650 / 52.5)")
    add("--json", action="store_true", help="print a JSON object")
    add("--figure", type=Path, metavar="PATH", help="draw into PATH.svg, .png, .csv, and .json beside")
    return found


def _datacenter(asked: argparse.Namespace) -> "Datacenter":
    """The datacenter asked for; raises ValueError."""
    from analysis.sizing import Datacenter
    from topologies.units import parse_rate_bps, parse_size_bytes

    for option, most in (("budget", _MOST_MONEY), ("rack_price", _MOST_MONEY), ("compute_share", 1.0)):
        _check(option, getattr(asked, option), most)
    for option, most in (("racks", _MOST_WHOLE), ("gpus_per_rack", 10_000)):
        _check(option, getattr(asked, option), most)
    for option, most in (("rack_pflops", 1e9), ("rack_power", 1e6)):
        _check(option, getattr(asked, option), most)
    given = {
        "budget": asked.budget,
        "compute_share": asked.compute_share,
        "rack_price": asked.rack_price,
        "racks": asked.racks,
        "gpus_per_rack": asked.gpus_per_rack,
        "rack_flops": None if asked.rack_pflops is None else asked.rack_pflops * 1e15,
        "rack_memory_bytes": None if asked.rack_memory is None else parse_size_bytes(asked.rack_memory),
        "rack_power_w": None if asked.rack_power is None else asked.rack_power * 1e3,
        "nvlink_bytes_s": None if asked.nvlink is None else parse_rate_bps(asked.nvlink) / 8,
        "nic_bytes_s": None if asked.nic is None else parse_rate_bps(asked.nic) / 8,
    }
    changed: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if {"budget", "compute_share", "rack_price"} & set(changed):
        changed.setdefault("racks", None)
    found = replace(Datacenter(), **changed)
    if not 1 <= found.number_of_racks <= _MOST_WHOLE:
        bought = f"{found.affordable_racks:,} racks for {found.budget:g} dollars"
        raise ValueError(f"--budget: {bought}; allowed: 1 to {_MOST_WHOLE:,}")
    return found


def _models(asked: argparse.Namespace) -> "Sequence[Model]":
    """The models asked for; raises ValueError."""
    from analysis.sizing import MODELS, Model

    for option, most in (("layers", 1_000_000), ("hidden", _MOST_WHOLE), ("heads", _MOST_WHOLE)):
        _check(option, getattr(asked, option), most)
    for option in ("vocabulary", "sequence"):
        _check(option, getattr(asked, option), _MOST_WHOLE)
    if (asked.layers is None) != (asked.hidden is None):
        alone, other = ("--layers", "--hidden") if asked.hidden is None else ("--hidden", "--layers")
        raise ValueError(f"{alone} is given alone; allowed: with {other}")
    models = MODELS if asked.layers is None else [Model(name="own", layers=asked.layers, hidden=asked.hidden)]
    changed = {name: getattr(asked, name) for name in ("heads", "vocabulary", "sequence") if getattr(asked, name)}
    if "sequence" in changed:
        changed["message_tokens"] = changed["sequence"]
    return [replace(model, **changed) for model in models]


def _check(option: str, value: float | None, most: float) -> None:
    if value is not None and not (0 < value <= most):
        raise ValueError(f"--{option.replace('_', '-')}: {value:,}; allowed: above 0, to {most:,.15g}")


def _table(rows: "Sequence[Row]") -> Iterator[str]:
    from analysis.sizing import AGREES
    from scenarios.table import aligned

    yield f"the document: Gherghescu et al., arXiv 2407.12819; *: more than {100 * AGREES:g} % from its number"
    cells = [("part", "model", "", "", "here", "document", "difference", "")]
    for row in rows:
        is_apart = row.difference is not None and abs(row.difference) > AGREES
        apart = "" if row.difference is None else f"{100 * row.difference:+.2f} %{'*' if is_apart else ' '}"
        note = row.note if row.value is None or is_apart else ""
        cells.append((row.part, row.model, row.what, row.unit, _number(row.value), _number(row.document), apart, note))
    yield from aligned(cells, (0, 1, 2, 3, 7))


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if float(value).is_integer() and abs(value) >= 1 else f"{value:,.4g}"
