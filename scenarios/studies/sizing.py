"""`run.py sizing`: size a datacenter for training, and compare the results with a document's numbers.

`analysis.sizing` has the formulas and names the document. Every input can be changed. The document's numbers stay the
same for its two models, so that differences then show the effect of the change.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from scenarios.studies.harness import Answer, Column, Show, Study, Table, add_output, quantity
from topologies.command_line import CommandParser

if TYPE_CHECKING:
    from analysis.figures.output import Picture
    from analysis.sizing import Datacenter, Model, Row

COMMAND = "run.py sizing"
_MAX_MONEY, _MAX_WHOLE = 1e15, 100_000_000
_CENT = 0.01  # a rack costs more, so the number of racks is finite


def _answer(options: argparse.Namespace, show: Show) -> Answer:
    from analysis.sizing import PRECISIONS, TOKENS_PER_PARAMETER, rows

    datacenter, models = _datacenter(options), _models(options)
    _check("tokens_per_parameter", options.tokens_per_parameter, _MAX_WHOLE)
    ratio = options.tokens_per_parameter or TOKENS_PER_PARAMETER
    results = list(rows(datacenter, models, PRECISIONS[options.precision], tokens_per_parameter=ratio))
    inputs = {"datacenter": asdict(datacenter), "precision": options.precision}
    inputs |= {"models": [asdict(model) for model in models], "tokens_per_parameter": ratio}

    def drawn() -> "Picture":
        from analysis.figures.sizing import picture

        names = " and ".join(model.name for model in models)
        title = f"{datacenter.number_of_racks:,} racks of {datacenter.gpus_per_rack} GPUs, {names}, {options.precision}"
        return picture(results, title=title)

    return Answer(
        tables=[_table(results)],
        as_json={**inputs, "rows": [asdict(row) | {"difference": row.difference} for row in results]},
        picture=drawn,
    )


def _parser() -> CommandParser:
    """Return the parser of the options."""
    parser = CommandParser(
        prog=COMMAND,
        description="A datacenter for training a very large language model: its size, and the times in a step.",
    )
    add = parser.add_argument
    add("--budget", type=float, metavar="DOLLARS", help="price of the datacenter (default 100e9)")
    add("--compute-share", type=float, metavar="SHARE", help="share of the budget that buys racks (default 0.7)")
    add("--rack-price", type=float, metavar="DOLLARS", help="(default 3e6)")
    add("--racks", type=int, metavar="N", help="(default 23,200, or as many as a given budget buys)")
    add("--gpus-per-rack", type=int, metavar="N", help="(default 72)")
    add("--rack-pflops", type=float, metavar="N", help="performance of a rack in fp4 (default 1440)")
    add("--rack-memory", metavar="SIZE", help='(default "13.5 TB")')
    add("--rack-power", type=float, metavar="KW", help="(default 120)")
    add("--nvlink", metavar="RATE", help='rate of a GPU within its rack (default "14.4 Tbit/s")')
    add("--nic", metavar="RATE", help='rate of a GPU to other racks (default "800 Gbit/s")')
    add("--precision", choices=("fp4", "fp8", "fp16"), default="fp4", help="of computing and sending (default fp4)")
    add("--layers", type=int, metavar="N", help="of a model of your own, with --hidden (default: the document's two)")
    add("--hidden", type=int, metavar="N", help="hidden dimension of that model")
    add("--heads", type=int, metavar="N", help="attention heads (default 280)")
    add("--vocabulary", type=int, metavar="N", help="(default 256,000)")
    add("--sequence", type=int, metavar="TOKENS", help="sequence length (default 32,768, and 32,000 in messages)")
    add("--tokens-per-parameter", type=float, metavar="N", help="of the largest models (default 1,650 / 52.5)")
    add_output(parser)
    return parser


def _datacenter(options: argparse.Namespace) -> "Datacenter":
    """Return the datacenter given by the options; raises ValueError."""
    from analysis.sizing import Datacenter
    from topologies.units import parse_size_bytes

    for option, most in (
        ("budget", _MAX_MONEY),
        ("compute_share", 1.0),
        ("racks", _MAX_WHOLE),
        ("gpus_per_rack", 10_000),
        ("rack_pflops", 1e9),
        ("rack_power", 1e6),
    ):
        _check(option, getattr(options, option), most)
    _check("rack_price", options.rack_price, _MAX_MONEY, above=_CENT)
    given = {
        "budget": options.budget,
        "compute_share": options.compute_share,
        "rack_price": options.rack_price,
        "racks": options.racks,
        "gpus_per_rack": options.gpus_per_rack,
        "rack_flops": None if options.rack_pflops is None else options.rack_pflops * 1e15,
        "rack_memory_bytes": _quantity("--rack-memory", options.rack_memory, parse_size_bytes),
        "rack_power_w": None if options.rack_power is None else options.rack_power * 1e3,
        "nvlink_bytes_s": _bytes_s("--nvlink", options.nvlink),
        "nic_bytes_s": _bytes_s("--nic", options.nic),
    }
    changed: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if {"budget", "compute_share", "rack_price"} & set(changed):
        changed.setdefault("racks", None)
    datacenter = replace(Datacenter(), **changed)
    if not 1 <= datacenter.number_of_racks <= _MAX_WHOLE:
        bought = f"{datacenter.affordable_racks:,} racks for {datacenter.budget:g} dollars"
        raise ValueError(f"--budget: {bought}; allowed: 1 to {_MAX_WHOLE:,}")
    return datacenter


def _quantity(option: str, text: str | None, parse: Callable[[str], int]) -> int | None:
    return None if text is None else quantity(COMMAND, option, text, parse)


def _bytes_s(option: str, text: str | None) -> float | None:
    from topologies.units import parse_rate_bps

    rate_bps = _quantity(option, text, parse_rate_bps)
    return None if rate_bps is None else rate_bps / 8


def _models(options: argparse.Namespace) -> "Sequence[Model]":
    """Return the models given by the options; raises ValueError."""
    from analysis.sizing import MODELS, Model

    for option in ("layers", "hidden", "heads", "vocabulary", "sequence"):
        _check(option, getattr(options, option), 1_000_000 if option == "layers" else _MAX_WHOLE)
    if (options.layers is None) != (options.hidden is None):
        alone, other = ("--layers", "--hidden") if options.hidden is None else ("--hidden", "--layers")
        raise ValueError(f"{alone} is given alone; allowed: with {other}")
    models = MODELS if options.layers is None else [Model(name="own", layers=options.layers, hidden=options.hidden)]
    changed = {name: getattr(options, name) for name in ("heads", "vocabulary", "sequence") if getattr(options, name)}
    if "sequence" in changed:
        changed["message_tokens"] = changed["sequence"]
    return [replace(model, **changed) for model in models]


def _check(option: str, value: float | None, most: float, *, above: float = 0) -> None:
    """Raise ValueError if an option is given and its value is not in (above, most]."""
    if value is not None and not (above < value <= most):
        raise ValueError(f"--{option.replace('_', '-')}: {value:,}; allowed: above {above:g}, to {most:,.15g}")


def _table(rows: "Sequence[Row]") -> "Table[Row]":
    from analysis.sizing import AGREES

    def is_apart(row: "Row") -> bool:
        return row.difference is not None and abs(row.difference) > AGREES

    def difference(row: "Row") -> str:
        return "" if row.difference is None else f"{100 * row.difference:+.2f} %{'*' if is_apart(row) else ' '}"

    columns: list[Column[Row]] = [
        Column("part", lambda row: row.part, left=True),
        Column("model", lambda row: row.model, left=True),
        Column("", lambda row: row.what, left=True),
        Column("", lambda row: row.unit, left=True),
        Column("here", lambda row: _number(row.value)),
        Column("document", lambda row: _number(row.document)),
        Column("difference", difference),
        Column("", lambda row: row.note if row.value is None or is_apart(row) else "", left=True),
    ]
    title = f"the document: Gherghescu et al., arXiv 2407.12819; *: more than {100 * AGREES:g} % from its number"
    return Table(columns, rows, title=title)


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if float(value).is_integer() and abs(value) >= 1 else f"{value:,.4g}"


STUDY = Study(command=COMMAND, parser=_parser, answer=_answer)
