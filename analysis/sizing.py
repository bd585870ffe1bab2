"""Size of a datacenter that trains a very large language model, and the times of a training step there.

The formulas are those of Gherghescu et al., "A Look Into Training Large Language Models on Next Generation
Datacenters", arXiv 2407.12819 (below: the document), and each result is compared with the document's number. A rack
holds copies of one layer of the model, as many as fit in its memory, and divides its GPUs evenly among them (tensor
parallelism). Nothing is tuned: if a formula gives another number than the document, the difference is shown.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

DAY_S, MONTH_DAYS = 86_400, 30


@dataclass(frozen=True, kw_only=True)
class Datacenter:
    """A datacenter of identical racks: `racks`, or if that is None as many as the budget buys. Money is in dollars,
    rates are in bytes/s."""

    budget: float = 100e9
    compute_share: float = 0.7
    rack_price: float = 3e6
    racks: int | None = 23_200
    gpus_per_rack: int = 72
    rack_flops: float = 1440e15
    rack_memory_bytes: float = 13.5e12
    rack_power_w: float = 120e3
    nvlink_bytes_s: float = 1.8e12
    nic_bytes_s: float = 100e9

    @property
    def affordable_racks(self) -> int:
        """The number of racks that the budget buys."""
        return math.floor(self.budget * self.compute_share / self.rack_price)

    @property
    def number_of_racks(self) -> int:
        """The number of racks in the datacenter."""
        return self.affordable_racks if self.racks is None else self.racks

    @property
    def flops(self) -> float:
        """Operations per second of all racks together."""
        return self.number_of_racks * self.rack_flops


@dataclass(frozen=True, kw_only=True)
class Precision:
    """A number format of training: its bytes per value, and its rate of computing.

    `weight` is the size of a weight in computations, of a gradient, and of an activation that is sent. `master` is the
    size of the master weight, `moments` that of both moments of the optimizer together, and `activation` that of a
    stored activation. `speed` is the rate of computing relative to FP4.
    """

    weight: float
    master: float
    moments: float
    activation: float
    speed: float


PRECISIONS: Mapping[str, Precision] = MappingProxyType(
    {
        "fp4": Precision(weight=0.5, master=1, moments=2, activation=1, speed=1),
        "fp8": Precision(weight=1, master=2, moments=4, activation=1, speed=0.5),
        "fp16": Precision(weight=2, master=4, moments=8, activation=2, speed=0.25),
    }
)
"""The document uses fp4: 1.5 bytes for a parameter with its master weight, 0.5 for a gradient, 2 for the optimizer. In
fp8 each of these is twice as large. fp16 is the usual mixed precision with 16 bytes per parameter."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """A transformer.

    The document's sequence of 32k tokens means 32,768 tokens (`sequence`) in its numbers for operations and memory, and
    32,000 tokens (`message_tokens`) in its numbers for messages.
    """

    name: str
    layers: int
    hidden: int
    heads: int = 280
    vocabulary: int = 256_000
    sequence: int = 32_768
    message_tokens: int = 32_000

    @property
    def parameters(self) -> float:
        """The number of parameters: 12 L h^2 in the layers, and h for each entry of the vocabulary."""
        return 12.0 * self.layers * self.hidden**2 + float(self.vocabulary) * self.hidden


MODELS: Sequence[Model] = (
    Model(name="100T", layers=224, hidden=192_000),
    Model(name="50T", layers=252, hidden=132_000),
)


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Table 2: the memory of a whole replica in bytes, without tensor parallelism."""

    parameters: float
    gradients: float
    optimizer: float
    activations: float

    @property
    def total(self) -> float:
        """The sum of the four."""
        return self.parameters + self.gradients + self.optimizer + self.activations


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Table 3: the placement of a model on racks and GPUs.

    `layer_bytes` is the memory of one copy of a layer, `layers_per_rack` the number of copies of a layer in a rack,
    `tensor` the number of GPUs of each copy, and `racks_per_layer` the number of racks of each layer.
    """

    layer_bytes: float
    layers_per_rack: int
    tensor: int
    racks_per_layer: int

    @property
    def replicas(self) -> int:
        """The number of copies of the whole model (data parallelism)."""
        return self.layers_per_rack * self.racks_per_layer


def memory(model: Model, precision: Precision) -> Memory:
    """Return the memory of a replica by Table 2. Activations of one byte take s h (17 + 2.5 a s / h) L bytes: half of
    what Korthikanti et al., "Reducing activation recomputation in large transformer models", MLSys 2023, have for two
    bytes each."""
    per_layer = model.sequence * (17.0 * model.hidden + 2.5 * model.heads * model.sequence)
    return Memory(
        parameters=(precision.weight + precision.master) * model.parameters,
        gradients=precision.weight * model.parameters,
        optimizer=precision.moments * model.parameters,
        activations=precision.activation * per_layer * model.layers,
    )


def placement(model: Model, precision: Precision, site: Datacenter) -> Placement:
    """Return the placement by Table 3: as many copies of a layer as fit in a rack, with an equal number of GPUs each.

    As in the document, the activations of a layer are divided by its number of GPUs. Raises ValueError if a layer does
    not fit in a rack, or if the model has more layers than there are racks.
    """
    needed = memory(model, precision)
    weights = (needed.total - needed.activations) / model.layers
    for copies in range(site.gpus_per_rack, 0, -1):
        tensor = site.gpus_per_rack // copies
        layer_bytes = weights + needed.activations / model.layers / tensor
        if copies * layer_bytes <= site.rack_memory_bytes:
            break
    else:
        layer = f"{layer_bytes / 1e12:,.3g} TB of a layer"
        raise ValueError(f"{layer}; allowed: the memory of a rack, {site.rack_memory_bytes / 1e12:,.3g} TB")
    racks = site.number_of_racks // model.layers
    if not racks:
        raise ValueError(f"{model.layers:,} layers; allowed: at most the number of racks, {site.number_of_racks:,}")
    return Placement(layer_bytes=layer_bytes, layers_per_rack=copies, tensor=tensor, racks_per_layer=racks)


def all_reduce_s(of_bytes: float, peers: int, bytes_s: float) -> float:
    """Return the time of a ring AllReduce of `of_bytes` among n `peers` without delay (equations 1 and 2): each peer
    sends 2 (n - 1) / n times the bytes."""
    return 2 * of_bytes * (peers - 1) / (bytes_s * peers)


@dataclass(frozen=True, kw_only=True)
class Step:
    """The times of a layer in a training step on a perfect network, in s.

    `flop` is the number of operations of a forward pass of the whole model, and `forward_s` the time of the pass for
    one layer. `tensor_s` is the time of one of the two all-reduces of a forward pass (equation 1), `pipeline_s` the
    time for sending activations to the next layer's rack. `in_rack_s` and `between_racks_s` are the times of the
    all-reduces of `gradient_bytes` (equation 2), and `gather_s` is the time of the all-gather after them.
    """

    flop: float
    forward_s: float
    tensor_s: float
    pipeline_s: float
    gradient_bytes: float
    in_rack_s: float
    between_racks_s: float
    gather_s: float

    @property
    def backward_s(self) -> float:
        """The time of the backward pass: twice that of the forward pass."""
        return 2 * self.forward_s


def step(model: Model, precision: Precision, site: Datacenter) -> Step:
    """Return the times of Table 4, equations 1 and 2, and the pipeline's transfers; raises as `placement` does."""
    placed = placement(model, precision, site)
    flop = 2 * model.parameters * model.sequence
    gpu_flops = site.rack_flops * precision.speed / site.gpus_per_rack
    sent = precision.weight * model.message_tokens * model.hidden / placed.tensor  # by each GPU of a layer
    gradient_bytes = precision.weight * model.parameters / model.layers
    by_gpu = gradient_bytes / placed.tensor
    return Step(
        flop=flop,
        forward_s=flop / model.layers / (placed.tensor * gpu_flops),
        tensor_s=all_reduce_s(2 * sent, placed.tensor, site.nvlink_bytes_s),  # of the MLP and of attention
        pipeline_s=sent / site.nic_bytes_s,
        gradient_bytes=gradient_bytes,
        in_rack_s=all_reduce_s(by_gpu, placed.layers_per_rack, site.nvlink_bytes_s),
        between_racks_s=all_reduce_s(gradient_bytes / site.gpus_per_rack, placed.racks_per_layer, site.nic_bytes_s),
        gather_s=all_reduce_s(by_gpu, placed.layers_per_rack, site.nvlink_bytes_s) / 2,
    )


TOKENS_PER_PARAMETER = 1650 / 52.5
"""The ratio of the document's model for 180 days; its model for 24 months has 31.2."""
TRAINED_DAYS = (30, 60, 90, 180, 360, 720)
"""The days of training for which the largest model is computed."""


def trained_parameters(site: Datacenter, precision: Precision, *, days: float, tokens_per_parameter: float) -> float:
    """Return the parameters N of the largest model that can be trained in `days` at full speed, by C = 6 N D, where the
    number of tokens D is tokens_per_parameter x N."""
    return math.sqrt(days * DAY_S * site.flops * precision.speed / (6 * tokens_per_parameter))


# --- comparison with the document -------------------------------------------------------------------------------------

AGREES = 0.025
"""The largest relative difference at which a number agrees with the document's."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One number: the `value` by the formula, and the number in the document.

    `value` is None if the formula is not known, and `document` is None if the document does not have the number. `note`
    explains a difference between the two.
    """

    part: str
    model: str
    what: str
    unit: str
    value: float | None
    document: float | None
    note: str = ""

    @property
    def difference(self) -> float | None:
        """The relative difference of the value from the document's number; None if one of them is missing."""
        return None if self.value is None or self.document is None else self.value / self.document - 1


_NO_FORMULA = "the document's number; its formula is not known"
_WIDE_AREA_BYTES, _WIDE_AREA_S = 300e6, 0.1
_RING_PEERS, _RING_RTT_S = 100, 5e-6


def rows(
    site: Datacenter,
    models: Sequence[Model],
    precision: Precision,
    *,
    tokens_per_parameter: float = TOKENS_PER_PARAMETER,
) -> Iterator[Row]:
    """Yield all numbers, part by part; those of a model that is not in the document have no number to compare with.

    Raises the errors of `placement`.
    """
    yield from _datacenter(site, precision)
    yield from trained(site, precision, tokens_per_parameter)
    for model in models:
        yield from _model(model, precision, site)
    yield from _others()


def _datacenter(site: Datacenter, precision: Precision) -> Iterator[Row]:
    part, speed = "datacenter", site.flops * precision.speed

    def row(what: str, unit: str, value: float, document: float, note: str = "") -> Row:
        return Row(part=part, model="", what=what, unit=unit, value=value, document=document, note=note)

    yield row("racks that the budget buys", "", site.affordable_racks, 23_200)
    yield row("racks", "", site.number_of_racks, 23_200)
    yield row("GPUs", "million", site.number_of_racks * site.gpus_per_rack / 1e6, 1.67)
    yield row("computing", "PFLOPS", speed / 1e15, 33_408_000)
    yield row("memory", "PB", site.number_of_racks * site.rack_memory_bytes / 1e15, 313)
    why = "the document's power of a rack is not known; 120 kW is usual for an NVL72"
    yield row("power for computing", "GW", site.number_of_racks * site.rack_power_w / 1e9, 2.9, why)
    part = "scaling"
    flop = 180 * DAY_S * speed
    yield row("operations of 180 days", "10^27", flop / 1e27, 519)
    yield row("tokens for 52.5T parameters in 180 days", "10^12", flop / (6 * 52.5e12) / 1e12, 1650)
    months = 6 * 103.5e12 * 3226e12 / speed / DAY_S / MONTH_DAYS
    why = "months of 30 days; the document's own numbers give 23.1"
    yield row("103.5T parameters, 3,226T tokens", "months", months, 24, why)


def trained(site: Datacenter, precision: Precision, tokens_per_parameter: float) -> Iterator[Row]:
    """Yield the size of the largest model that a datacenter can train in each of TRAINED_DAYS."""
    of_document = {180: 52.5, 720: 103.5}
    for days in TRAINED_DAYS:
        parameters = trained_parameters(site, precision, days=days, tokens_per_parameter=tokens_per_parameter)
        what = f"parameters trained in {days} days"
        document = of_document.get(days)
        yield Row(part="scaling", model="", what=what, unit="10^12", value=parameters / 1e12, document=document)


def _model(model: Model, precision: Precision, site: Datacenter) -> Iterator[Row]:
    bytes_of, placed, times = memory(model, precision), placement(model, precision, site), step(model, precision, site)
    numbers = _DOCUMENT.get(model.name, {})

    def row(part: str, what: str, unit: str, value: float | None) -> Row:
        document = numbers.get(what)
        note = _NOTES.get((model.name, what), "") if value is not None else _NO_FORMULA
        return Row(part=part, model=model.name, what=what, unit=unit, value=value, document=document, note=note)

    yield row("models", "parameters", "10^12", model.parameters / 1e12)
    for name in ("parameters", "gradients", "optimizer", "activations", "total"):
        yield row("table 2", f"memory, {name}", "TB", getattr(bytes_of, name) / 1e12)
    yield row("table 3", "memory per layer", "TB", placed.layer_bytes / 1e12)
    yield row("table 3", "layers per rack", "", placed.layers_per_rack)
    yield row("table 3", "replicas", "", placed.replicas)
    yield row("table 3", "tensor parallelism", "", placed.tensor)
    yield row("table 3", "pipeline parallelism", "", model.layers)
    yield row("table 4", "operations of a forward pass", "10^18", times.flop / 1e18)
    yield row("table 4", "operations of a layer", "10^15", times.flop / model.layers / 1e15)
    yield row("table 4", "forward pass of a layer", "ms", times.forward_s * 1e3)
    yield row("table 4", "backward pass of a layer", "ms", times.backward_s * 1e3)
    yield row("equation 1", "tensor-parallel all-reduce", "ms", times.tensor_s * 1e3)
    yield row("equation 1", "all-reduces of a forward pass", "ms", 2 * times.tensor_s * 1e3)
    yield row("section 4", "pipeline, point to point", "ms", times.pipeline_s * 1e3)
    if "pipeline, all-gather" in numbers:
        yield row("section 4", "pipeline, all-gather", "ms", None)
    yield row("equation 2", "gradients of a layer", "GB", times.gradient_bytes / 1e9)
    yield row("equation 2", "all-reduce in a rack", "ms", times.in_rack_s * 1e3)
    yield row("equation 2", "all-reduce between racks", "ms", times.between_racks_s * 1e3)
    yield row("equation 2", "all-gather in a rack", "ms", times.gather_s * 1e3)
    yield row("section 4.2", "replicas in each of two datacenters", "", placed.replicas // 2)


def _others() -> Iterator[Row]:
    """Yield the numbers that do not depend on inputs: of the wide area, and of the networks in section 5."""
    rate = _WIDE_AREA_BYTES * 8 / _WIDE_AREA_S / 1e9
    latency_s = 2 * _RING_PEERS * _RING_RTT_S
    for part, what, unit, value, document, note in (
        ("section 4.2", "300 MB in 100 ms, each flow", "Gbit/s", rate, 25.0, 'document: "about 100 ms", 25 at least'),
        ("section 4.2", "between the datacenters", "Tbit/s", None, 14.0, _NO_FORMULA),
        ("section 4", "exposed communication of a step", "ms", None, 5.0, _NO_FORMULA),
        ("section 5", "200 round trips of 5 us in a ring of 100", "ms", latency_s * 1e3, 1.0, ""),
        ("section 5", "full fat tree, switches", "", None, 75_000, _NO_FORMULA),
        ("section 5", "full fat tree, links", "million", None, 2.4, _NO_FORMULA),
        ("section 5", "multi-rail, switches", "", None, 4_300, _NO_FORMULA),
        ("section 5", "multi-rail, links", "", None, 240_000, _NO_FORMULA),
    ):
        yield Row(part=part, model="", what=what, unit=unit, value=value, document=document, note=note)


_DOCUMENT: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        "100T": {
            "parameters": 99.2,
            "memory, parameters": 148.7,
            "memory, gradients": 49.5,
            "memory, optimizer": 198.3,
            "memory, activations": 188,
            "memory, total": 585,
            "memory per layer": 1.86,
            "layers per rack": 7,
            "replicas": 721,
            "tensor parallelism": 10,
            "pipeline parallelism": 224,
            "operations of a forward pass": 6.52,
            "operations of a layer": 29,
            "forward pass of a layer": 145.5,
            "backward pass of a layer": 290,
            "tensor-parallel all-reduce": 0.61,
            "all-reduces of a forward pass": 1.22,
            "pipeline, point to point": 3,
            "pipeline, all-gather": 0.3,
            "gradients of a layer": 223,
            "all-reduce in a rack": 21,
            "all-reduce between racks": 60,
            "all-gather in a rack": 10,
            "replicas in each of two datacenters": 360,
        },
        "50T": {
            "memory, parameters": 79.1,
            "memory, gradients": 26.3,
            "memory, optimizer": 105.5,
            "memory, activations": 203.9,
            "memory, total": 415,
            "memory per layer": 1.00,
            "layers per rack": 13,
            "replicas": 1196,
            "tensor parallelism": 5,
            "pipeline parallelism": 252,
            "operations of a forward pass": 3.5,
            "operations of a layer": 13.9,
            "forward pass of a layer": 139.2,
            "tensor-parallel all-reduce": 0.71,
            "all-reduces of a forward pass": 1.42,
            "pipeline, point to point": 4,
            "pipeline, all-gather": 0.2,
            "gradients of a layer": 104,
            "all-reduce in a rack": 21,
            "all-reduce between racks": 28,
            "replicas in each of two datacenters": 598,
        },
    }
)

_ROUNDED = "the document has whole milliseconds"
_NOTES: Mapping[tuple[str, str], str] = MappingProxyType(
    {
        ("50T", "tensor-parallel all-reduce"): "equation 1 gives this with the document's inputs",
        ("50T", "all-reduces of a forward pass"): "equation 1 gives this with the document's inputs",
        ("50T", "pipeline, point to point"): "0.42 GB at 100 GB/s; " + _ROUNDED,
        ("50T", "all-reduce between racks"): _ROUNDED,
        ("100T", "all-gather in a rack"): "half of the all-reduce in a rack; " + _ROUNDED,
    }
)
"""Why a number differs by more than `AGREES` from the document's, by model and name of the number."""
