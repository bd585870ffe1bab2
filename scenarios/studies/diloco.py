"""`run.py diloco`: compute utilisation against the WAN's bandwidth, of data parallelism, DiLoCo and its successors.

Two sites each train a replica of a model, and sum over the WAN what they learn. A site is one GPU that computes as fast
as the whole site; what is sent inside a site takes no time. Each method is a training scenario with other values of
`[training]`, run over a range of bandwidths. Utilisation is the time in which a site computes, divided by all time. For
a wanted utilisation the study tells the least bandwidth.

The models "1B", "10B" and "100B" are those of the Streaming DiLoCo paper (arXiv 2501.18512), whose table 4 has the
bandwidths that its authors' simulator gave; they are printed beside.
"""

import argparse
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

from analysis.statistics.number_words import fixed
from scenarios.experiment.options import MAX_JOBS
from scenarios.studies import quorum
from scenarios.studies.harness import (
    Answer,
    Column,
    Show,
    Study,
    Table,
    add_output,
    add_scenario,
    check_plain,
    check_range,
    loaded,
    quantity,
    warn,
    warnings_of,
)
from topologies.command_line import CommandParser

if TYPE_CHECKING:
    from analysis.figures.output import Picture
    from analysis.figures.utilisation import Row
    from scenarios.spec.scenario import Scenario

COMMAND = "run.py diloco"
LEVELS = (50, 80, 90, 95, 99)
"""The utilisations, in percent, for which the least bandwidth is told."""
TOLD = 90
"""The utilisation for which it is told in a sentence."""
PER_DECADE = 8
"""Bandwidths per factor of ten."""
REFINEMENTS = 4
"""How often the model is run again at the bandwidths found so far."""
_PARAMETER_BYTES, _LAYERS_PER_FRAGMENT, _VALUE_BITS = 4, 3, 16
_DATA_PARALLEL, _DILOCO, _STREAMING, _OVERLAPPED, _FEW_BITS = (
    "data parallel",
    "DiLoCo (local SGD)",
    "Streaming DiLoCo",
    "Streaming, overlapped",
    "Streaming, overlapped, fewer bits",
)


@dataclass(frozen=True)
class Model:
    """A model: its parameters, its layers, and how long a step computes (s)."""

    parameters: float
    layers: int
    step_s: float

    @property
    def words(self) -> str:
        """The parameters: "10B", ten billions."""
        return f"{self.parameters / 1e9:g}B" if self.parameters >= 1e9 else f"{self.parameters / 1e6:g}M"


MODELS: Mapping[str, Model] = {"1B": Model(1e9, 24, 0.1), "10B": Model(10e9, 48, 0.8), "100B": Model(100e9, 108, 4.9)}
PAPER: Mapping[str, Mapping[str, tuple[float, ...]]] = {
    "1B": {
        _DATA_PARALLEL: (86.8, 152.6, 184.2, 222.3, 569.0),
        _DILOCO: (1.4, 6.2, 13.3, 23.3, 86.8),
        _STREAMING: (1.4, 5.2, 9.1, 16.0, 28.1),
        _OVERLAPPED: (1.4, 4.3, 6.2, 9.1, 11.0),
        _FEW_BITS: (0.4, 0.9, 1.7, 2.0, 3.0),
    },
    "10B": {
        _DATA_PARALLEL: (104.8, 222.3, 222.3, 268.3, 471.5),
        _DILOCO: (1.7, 7.5, 16.0, 33.9, 104.8),
        _STREAMING: (1.7, 5.2, 9.1, 13.3, 19.3),
        _OVERLAPPED: (1.7, 3.6, 5.2, 6.2, 7.5),
        _FEW_BITS: (0.4, 0.9, 1.4, 1.4, 1.7),
    },
    "100B": {
        _DATA_PARALLEL: (184.2, 323.8, 390.7, 390.7, 471.5),
        _DILOCO: (3.0, 11.0, 23.3, 49.4, 184.2),
        _STREAMING: (2.4, 6.2, 9.1, 11.0, 19.3),
        _OVERLAPPED: (1.7, 3.6, 4.3, 5.2, 5.2),
        _FEW_BITS: (0.5, 0.9, 1.1, 1.1, 1.4),
    },
}
"""Table 4 of the paper: by model and method, the Gbit/s for each of `LEVELS`, with 100 steps between two sums, three
layers in a fragment, one step of overlap, and 4 bits. They are the least of its bandwidths, each 1.2 times the next."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """A method: its values of [training] and others, its utilisation by bandwidth (bit/s), and the least bandwidth for
    each of `LEVELS`: 0 if the least one that was run is enough, infinite if the highest one is not."""

    method: str
    training: Mapping[str, object]
    utilisation: Mapping[int, float]
    least_bps: tuple[float, ...]
    paper_gbps: tuple[float, ...] | None = None
    failing: tuple[quorum.Failing, ...] = ()


def answer(options: argparse.Namespace, show: Show, beside: "Sequence[Row]" = ()) -> Answer:
    """Return the answer to these options; `beside` are further points of its figure. Raises ValueError."""
    quorum.check(options)
    model, rates = _model(options), _rates(options)
    methods = _methods(options, model)
    _scenario(options, methods[_FEW_BITS], rates[:1])  # has every option, so a wrong one is told at once
    scenarios = {method: _scenario(options, values, rates) for method, values in methods.items()}
    if options.engine == "emulation":  # what there is to tell is about measured times
        warn(COMMAND, scenarios.values(), emulates=True)
    paper = PAPER[options.model] if _is_of_paper(options) else {}
    lines, problems = [], list[str]()
    for number, (method, scenario) in enumerate(scenarios.items()):
        show(f"{options.engine}: {number} of {len(scenarios)} methods")
        found = _utilisation(options, scenario, problems)
        for _ in range(REFINEMENTS if options.engine == "model" else 0):
            again = {round(least) for least in _least(found) if math.isfinite(least)} - {0, *found}
            if again:
                found |= _utilisation(options, _scenario(options, _values(scenario), sorted(again)), problems)
        lines.append(
            Line(
                method=method,
                training=_values(scenario),
                utilisation=dict(sorted(found.items())),
                least_bps=tuple(_least(found)),
                paper_gbps=paper.get(method),
            )
        )
    few_bits = scenarios[_FEW_BITS]
    failing = quorum.failing(options, few_bits)
    lines.append(_decoupled(options, few_bits, failing))
    told = _parameters(options, model, few_bits)
    title = f"{', '.join(told.values())}; {'predicted' if options.engine == 'model' else 'measured'}"
    notes = ["", *_sentences(lines, rates)]
    if options.engine == "emulation":
        notes.append(f"{quorum.METHOD}: predicted, as no schedule can wait for the first sites of several.")
    what = "Gbit/s for a compute utilisation" if len(rates) > 1 else "Compute utilisation"
    table = Table(_columns(lines, rates), lines, title=f"{what}; {title}", notes=notes)
    return Answer(
        tables=[table, quorum.table(options, failing)] if failing else [table],
        as_json=[_as_json(line) | {"parameters": told} for line in lines],
        picture=lambda: _picture(lines, title, beside),
        problems=[*_assumed(options, model), *problems],
    )


def _parameters(options: argparse.Namespace, model: Model, scenario: "Scenario") -> dict[str, str]:
    """Return in words what the answer holds for, by name, given the scenario that has every option."""
    from topologies.units import format_delay

    training, (config, *_) = scenario.training, scenario.configurations()
    own = [text for text in options.set if not text.startswith(("conditions.wan_delay=", "run.seed="))]
    steps = f"{training.overlap} step{'s' * (training.overlap != 1)}"
    return {
        "model": f"{model.words} parameters in {model.layers} layer{'s' * (model.layers > 1)}",
        "step": f"a step of {model.step_s:g} s",
        "every": f"a sum every {training.every} steps",
        "fragments": f"{training.fragments} fragment{'s' * (training.fragments != 1)}",
        "overlap": f"overlapped with {steps}",
        "bits": f"fewer bits: {options.bits}",
        "wan_delay": f"WAN delay {format_delay(config.conditions.wan_delay_s)}",
        **{text.partition("=")[0]: text for text in own},
    }


def _assumed(options: argparse.Namespace, model: Model) -> Iterator[str]:
    """Yield what a model of one's own has from another one."""
    if options.parameters is not None:
        taken = [f"{model.layers} layers"] * (options.layers is None) + [f"a step of {model.step_s:g} s"] * (
            options.step is None
        )
        if taken:
            yield f"{' and '.join(taken)} taken from the model {options.model}; --layers and --step set others"


def _decoupled(options: argparse.Namespace, scenario: "Scenario", failing: Sequence[quorum.Failing]) -> Line:
    """Return the line of decoupled DiLoCo, whose other values are those of a scenario."""
    found = quorum.utilisation(options, scenario)
    for _ in range(REFINEMENTS):
        again = {round(least) for least in _least(found) if math.isfinite(least)} - {0, *found}
        if again:
            found |= quorum.utilisation(options, _scenario(options, _values(scenario), sorted(again)))
    return Line(
        method=quorum.METHOD,
        training=_values(scenario) | quorum.words(options),
        utilisation=dict(sorted(found.items())),
        least_bps=tuple(_least(found)),
        failing=tuple(failing),
    )


def _is_of_paper(options: argparse.Namespace) -> bool:
    """Whether the options describe a row of the paper's table, in which sites have no distance worth mentioning."""
    own = (options.parameters, options.layers, options.step, options.fragments)
    is_plain = options.scenario == "paper" and all(text.startswith("run.seed=") for text in options.set)  # of failures
    return (
        is_plain and all(one is None for one in own) and (options.every, options.overlap, options.bits) == (100, 1, 4)
    )


def _model(options: argparse.Namespace) -> Model:
    """Return the model given by the options; raises ValueError."""
    from topologies.units import parse_delay_s

    check_range(options, 1e3, 1e14, "parameters")
    check_range(options, 1, 256, "layers")
    check_range(options, 1, 100, "collectives")
    check_range(options, 1, MAX_JOBS, "jobs")
    known = MODELS[options.model]
    return Model(
        options.parameters or known.parameters,
        options.layers or known.layers,
        known.step_s if options.step is None else quantity(COMMAND, "--step", options.step, parse_delay_s),
    )


def _rates(options: argparse.Namespace) -> list[int]:
    """Return the bandwidths of the options in equal factors from the least to the highest, bit/s; raises ValueError."""
    from topologies.units import parse_rate_bps

    least = quantity(COMMAND, "--from", options.least, parse_rate_bps)
    most = quantity(COMMAND, "--to", options.most, parse_rate_bps)
    if most < least:
        raise ValueError(f"--to: {options.most}; allowed: from --from, {options.least}, up")
    count = max(1, math.ceil(PER_DECADE * math.log10(most / least)))
    return [*dict.fromkeys(round(least * (most / least) ** (number / count)) for number in range(count + 1))]


def _methods(options: argparse.Namespace, model: Model) -> dict[str, dict[str, object]]:
    """Return the values of [training] of each method."""
    from topologies.units import format_delay, format_size

    common: dict[str, object] = {
        "replicas": 2,
        "across": "data",
        "micro_batches": 1,
        # A backward takes twice the operations of a forward.
        "forward": format_delay(model.step_s / 3),
        "backward": format_delay(model.step_s * 2 / 3),
        "gradient_size": format_size(round(model.parameters * _PARAMETER_BYTES)),
        "buckets": model.layers,
        "bits": _VALUE_BITS,
    }
    fragments = options.fragments or max(1, model.layers // _LAYERS_PER_FRAGMENT)
    diloco = common | {"every": options.every}
    # The fragments' sums begin during the backward too, a bucket for each of their layers.
    streaming = diloco | {"fragments": fragments, "buckets": max(1, model.layers // fragments)}
    overlapped = streaming | {"overlap": options.overlap}
    return {
        _DATA_PARALLEL: common | {"every": 1},
        _DILOCO: diloco,
        _STREAMING: streaming,
        _OVERLAPPED: overlapped,
        _FEW_BITS: overlapped | {"bits": options.bits},
    }


def _scenario(options: argparse.Namespace, training: Mapping[str, object], rates: Sequence[int]) -> "Scenario":
    """Return the scenario of a method at these bandwidths (bit/s); raises ScenarioError."""
    from topologies.units import format_rate

    values = {f"training.{key}": value for key, value in training.items()}
    fixed: dict[str, object] = {"collective.kind": "training", "run.modes": ["base"], "fabric.gpus": 2}
    fixed |= {"conditions.intra_rate": format_rate(max(rates)), "sweep.conditions.wan_rate": [*map(format_rate, rates)]}
    scenario = loaded(options, fixed | values)
    check_plain(options.scenario, scenario, ("conditions.wan_rate",))
    return scenario


def _values(scenario: "Scenario") -> dict[str, object]:
    """Return the values of [training] that differ from the defaults, as they are written in a scenario."""
    from scenarios.spec.keys import KEYS
    from scenarios.spec.scenario import DEFAULTS

    names = [name for name in KEYS if name.startswith("training.") and scenario.value(name) != DEFAULTS.value(name)]
    return {name.removeprefix("training."): KEYS[name].kind.write(scenario.value(name)) for name in names}


def _utilisation(options: argparse.Namespace, scenario: "Scenario", problems: list[str]) -> dict[int, float]:
    """Run a scenario; return the utilisation by bandwidth, bit/s, and add what is wrong with measured times."""
    from scenarios.api import run

    rows = run(scenario, options.engine, jobs=options.jobs, progress=lambda done, count: None)
    if options.engine == "emulation":
        problems += warnings_of(rows)
    training = scenario.training
    computing_s = training.every * training.micro_batches * (training.forward_s + training.backward_s)
    took_s = rows.groupby("setting").completion_s.mean()
    configs = scenario.configurations()
    return {round(max(configs[at].conditions.wan_rate_bps)): computing_s / float(took_s[at]) for at in took_s.index}


def _least(utilisation: Mapping[int, float]) -> Iterator[float]:
    """Yield the least bandwidth, bit/s, for each of `LEVELS`, interpolated between two bandwidths that were run.

    The time of a round grows with a message's time, so it is taken as linear in the reciprocal of the bandwidth.
    """
    points = sorted(utilisation.items())
    for level in LEVELS:
        wanted = 100 / level  # the time of a round, divided by its computing time
        if points[0][1] >= level / 100:
            yield 0.0
            continue
        least = math.inf
        for (low, before), (high, after) in pairwise(points):
            if before < level / 100 <= after:
                share = (1 / before - wanted) / (1 / before - 1 / after)
                least = 1 / (1 / low + share * (1 / high - 1 / low))
                break
        yield least


def _gbps(least_bps: float) -> str:
    if least_bps == 0 or math.isinf(least_bps):
        return "all" if least_bps == 0 else "none"
    return f"{least_bps / 1e9:.3g}" if least_bps < 1e12 else f"{least_bps / 1e9:,.0f}"


def _as_json(line: Line) -> dict[str, object]:
    least = [None if math.isinf(one) else one for one in line.least_bps]
    found = asdict(line) | {"least_bps": dict(zip(LEVELS, least, strict=True))}
    if not line.failing:
        del found["failing"]
    return found


def _columns(lines: Sequence[Line], rates: Sequence[int]) -> list[Column[Line]]:
    columns = [Column[Line]("method", lambda line: line.method, left=True)]
    if len(rates) == 1:
        return [*columns, Column[Line](f"at {_gbps(rates[0])} Gbit/s (%)", lambda line: _percent(line, rates[0]))]
    columns += [Column[Line](f"{level} %", partial(_cell, index)) for index, level in enumerate(LEVELS)]
    if any(line.paper_gbps for line in lines):
        columns += [Column[Line](f"paper's {level} %", partial(_paper_cell, n)) for n, level in enumerate(LEVELS)]
    return columns


def _cell(index: int, line: Line) -> str:
    return _gbps(line.least_bps[index])


def _paper_cell(index: int, line: Line) -> str:
    return "" if line.paper_gbps is None else f"{line.paper_gbps[index]:g}"


def _percent(line: Line, rate: int) -> str:
    """Return the utilisation at a bandwidth that was run."""
    return fixed(100 * line.utilisation[rate], 1)


def _sentences(lines: Sequence[Line], rates: Sequence[int]) -> Iterator[str]:
    """Yield the bandwidth for `TOLD` percent with each method, and what "all" and "none" mean; of a single bandwidth
    the utilisations."""
    from topologies.units import format_rate

    at = LEVELS.index(TOLD)
    low, high = map(format_rate, (rates[0], rates[-1]))
    if len(rates) == 1:
        found = "; ".join(f"{line.method} {_percent(line, rates[0])} %" for line in lines)
        yield f"Of the time at {low}, this is computing: {found}."
        return
    parts = []
    for line in lines:
        least = line.least_bps[at]
        if least == 0:
            said = f"at most {low}"
        elif math.isinf(least):
            said = f"more than {high}"
        else:
            said = f"{_gbps(least)} Gbit/s"
        parts.append(f"{line.method} {said}")
    yield f"For {TOLD} % of the time computing: {'; '.join(parts)}."
    if any(least == 0 for line in lines for least in line.least_bps):
        yield f'"all": {low} is enough.'
    if any(math.isinf(least) for line in lines for least in line.least_bps):
        yield f'"none": {high} is not enough.'


def _picture(lines: Sequence[Line], title: str, beside: "Sequence[Row]") -> "Picture":
    from analysis.figures.utilisation import Row, picture

    rows = [Row(line.method, bps / 1e9, share) for line in lines for bps, share in line.utilisation.items()]
    rows += [
        Row(line.method, gbps, percent / 100, published=True)
        for line in lines
        for gbps, percent in zip(line.paper_gbps or (), LEVELS, strict=False)
    ]
    at = LEVELS.index(TOLD)
    least = {line.method: line.least_bps[at] / 1e9 for line in lines if 0 < line.least_bps[at] < math.inf}
    return picture([*rows, *beside], least, level=TOLD / 100, title=title)


def _parser() -> CommandParser:
    """Return the parser of the options."""
    parser = CommandParser(
        prog=COMMAND,
        description="Compute utilisation against the bandwidth between two sites: data parallelism, local SGD and "
        "DiLoCo, Streaming DiLoCo, and decoupled DiLoCo, also while sites die and return.",
    )
    add_scenario(parser, count=1)
    add = parser.add_argument
    add("--model", choices=tuple(MODELS), default="10B", help="of the Streaming DiLoCo paper (default %(default)s)")
    add("--parameters", type=float, metavar="N", help="of a model of your own")
    add("--layers", type=int, metavar="N", help="its layers; gradients are summed layer by layer")
    add("--step", metavar="TIME", help="how long one of its steps computes")
    add("--every", type=int, default=100, metavar="STEPS", help="steps between two sums, H (default %(default)s)")
    add("--fragments", type=int, metavar="N", help="fragments of Streaming DiLoCo (default: one for 3 layers)")
    add("--overlap", type=int, default=1, metavar="STEPS", help="steps beside a fragment's sum (default %(default)s)")
    add("--bits", type=int, default=4, help=f"bits of a value where they are fewer than {_VALUE_BITS} (default 4)")
    quorum.add_options(parser)
    add("--from", dest="least", metavar="RATE", default="0.1 Gbit/s", help="least bandwidth (default %(default)s)")
    add(
        "--to",
        dest="most",
        metavar="RATE",
        default="1000 Gbit/s",
        help="highest bandwidth, or the same one (default %(default)s)",
    )
    add("--engine", choices=("model", "emulation"), default="model", help="(default model)")
    add("--jobs", type=int, default=1, help="processes or VMs at a time (default 1)")
    add_output(parser)
    return parser


STUDY = Study(command=COMMAND, parser=_parser, answer=answer)
