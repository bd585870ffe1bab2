"""The keys of the scenario language: of each, the field that holds its value, the kind of its values, its meaning.

In a scenario file, `NAME = value` in `[TABLE]` is the key "TABLE.NAME". A kind has the unit, the range, and how a value
is read and written. The default of a key is the default of its field (`scenario.Scenario` and the dataclasses in it).
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import chain
from pathlib import Path
from typing import Any

from hosts.agent.transport import TCP, VERBS, CongestionControl
from hosts.collectives.kinds import ALGORITHMS, MESSAGES, TRACE, TRAINING
from hosts.collectives.training import ACROSS, GRADIENTS, PIPELINES, VALUE_BITS
from hosts.embedding.ring import OBJECTIVES
from scenarios.policies import policy
from scenarios.policies.policy import MODES
from scenarios.spec import admission, classes, emulated, faults, gpu, jobs, program, roles, te
from scenarios.spec.run import AUTO
from scenarios.spec.values import (
    DELAY,
    LINK_DELAY,
    NAME,
    NAME_SIGNS,
    RATES,
    SCHEDULE_FILE,
    SIZE,
    TRUTH,
    Kind,
    numbers,
    one_of,
    quantity,
    texts,
    unique,
    whole,
)
from topologies import units
from topologies.conditions import background_load, link_overrides
from topologies.conditions.sampler import MAX_COEFFICIENT, MIN_EVERY_S, SAMPLERS
from topologies.errors import Mistake, SpecError, did_you_mean, format_value
from topologies.fabric.fabric import (
    GRAINS,
    MAX_GPUS_PER_SITE,
    MAX_HASH_SEED,
    MAX_PIECES,
    MAX_SITES,
    MAX_SWITCHES_PER_TIER,
    ROUTINGS,
    TE_OBJECTIVES,
    even_split,
)
from topologies.fabric.maps import ALLOWED, read_wan, write_wan
from topologies.fabric.wan import MAX_PATHS
from topologies.shaping.classes import FRAME_BYTES, MAX_BUFFER_BYTES
from topologies.shaping.rate_scale import MAX_DIVISOR, RateScale
from topologies.shaping.rdma import KINDS as RDMA

MAX_COLLECTIVES = 10_000_000
MIN_PROBE_BYTES, MAX_PROBE_BYTES = 10_000, 1_000_000
MAX_CONTROL_DELAY_S = 1.0  # a change of rules takes a round trip, and the controller waits 5 s for it
MAX_SEED = 2**63 - 1
MAX_REPLICAS = 128  # more are more messages than training may have
_MAX_S = 1000.0
MAX_AXIS_VALUES = 100
MIN_LOSS, MAX_LOSS = 1e-9, 0.1  # of frames: netem's unit is 2^-32, and agents stop waiting for TCP at some point
MAX_CONFIGURATIONS = 1000
"""Most configurations that the axes of [sweep] may span together."""


@dataclass(frozen=True)
class Key:
    """A key of a scenario: its name, its field, its kind, its meaning, and the samplers that use it.

    `within` is the field of Scenario that contains this field, if it does not have the name of the key's table.
    """

    name: str
    attribute: str
    kind: Kind
    meaning: str
    samplers: tuple[str, ...] = SAMPLERS
    within: str | None = None

    @property
    def table(self) -> str:
        """The table of the key; "" for keys outside tables."""
        return self.name.rpartition(".")[0]

    @property
    def owner(self) -> str:
        """The field of Scenario that contains the key's field; "" for Scenario itself."""
        return self.table if self.within is None else self.within


def _tables(name: str, read: Callable[[list[object]], Sequence[Any]]) -> Kind:
    """Return the kind of lists of tables, each of which declares an object with a method `written`."""
    return Kind(f"[[{name}]] tables", (list,), read, lambda specs: [one.written() for one in specs], is_object=True)


def _read_ratios(given: list[object]) -> tuple[float, ...]:
    if len(given) > 2:
        raise ValueError(f"{format_value(given)} has {len(given)} numbers; allowed: {_RATIOS.allowed}")
    return tuple(map(_RATIO.read, given))


def _read_control(given: str | dict[str, object]) -> CongestionControl:
    """Read one name for all connections, or a table of one for each part; a part that is left out has the default."""
    if isinstance(given, str):
        return CongestionControl(intra=_ALGORITHM_OF_TCP.read(given), wan=_ALGORITHM_OF_TCP.read(given))
    allowed, mistakes, values = ", ".join(_CROSSINGS), list[Mistake](), dict[str, Any]()
    if not given:
        raise ValueError(f"is empty; allowed: the keys {allowed}, at least one")
    for part, name in given.items():
        try:
            if part not in _CROSSINGS:
                hint = did_you_mean(part, _CROSSINGS)
                raise ValueError(f"unknown part of a congestion control, allowed: {allowed}{hint}")
            values[part] = _ALGORITHM_OF_TCP.read(name)
        except ValueError as error:
            mistakes.append(Mistake(f"transport.congestion_control.{part}", str(error)))
    if mistakes:
        raise SpecError(mistakes)
    return CongestionControl(**values)


_CROSSINGS = tuple(part.name for part in fields(CongestionControl))
_ALGORITHM_OF_TCP = one_of("cubic", "reno", "bbr", "dctcp")
_CONTROL = Kind(
    f"{_ALGORITHM_OF_TCP.allowed}, or a table of one within sites (intra) and one between them (wan)",
    (str, dict),
    _read_control,
    lambda control: control.intra if control.is_one else asdict(control),
    is_object=True,
)
_TITLE = texts(f"1 to 64 {NAME_SIGNS}", re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}").fullmatch)
_FILE = texts(
    "the path of a CSV file of time, link and rate, in printable text", lambda text: text and text.isprintable(), Path
)
_ALGORITHM = one_of(*dict.fromkeys(chain.from_iterable(ALGORITHMS.values())))
_COUNT = whole(1, MAX_COLLECTIVES, "collectives")
_SHARE = numbers((int, float), 0, 10**15, "share of the highest rate")
_LOSS = numbers((int, float), MIN_LOSS, MAX_LOSS, "share of frames", or_zero=True)
_SEARCH = numbers((int, float), 0.01, 1000, "some seconds of a processor")
_TFLOPS = numbers((int, float), 0.001, 10**9)
_STAY = numbers((int, float), 1, 10**15, "collectives")
_COEFFICIENT = numbers((int, float), 0, MAX_COEFFICIENT)
_ONE_DELAY = quantity(units.DELAY, "5 ms", (1e-9, MAX_CONTROL_DELAY_S))
_STEP = quantity(units.SPAN, "10 min")
_EVERY = quantity(units.DELAY, "100 ms", (MIN_EVERY_S, _MAX_S))
_SAMPLE = quantity(units.DELAY, "10 ms", (te.MIN_SAMPLE_S, _MAX_S))
_PROBE = quantity(units.SIZE, "250 kB", (MIN_PROBE_BYTES, MAX_PROBE_BYTES))
_FRAMES = quantity(units.SIZE, "500 kB", (FRAME_BYTES, MAX_BUFFER_BYTES), " (one frame)")
_MARKS = quantity(units.SIZE, "500 kB", (FRAME_BYTES, MAX_BUFFER_BYTES - 1), " (one frame)")  # below a buffer's size
_CONTROL_DELAY = Kind(
    f"{_ONE_DELAY.allowed}, or a list of one for a site",
    (str, list),
    lambda given: tuple(map(_ONE_DELAY.read, given)) if isinstance(given, list) else _ONE_DELAY.read(given),
    lambda value: list(map(_ONE_DELAY.write, value)) if isinstance(value, tuple) else _ONE_DELAY.write(value),
    unit=DELAY.unit,
    ends=_ONE_DELAY.ends,
)
_WEIGHTS = quantity(units.DELAY, "10 ms", (1e-9, _MAX_S - 1))  # less than a backward pass, of which it is a part
_RECOVERY = quantity(units.DELAY, "200 ms", (1e-9, _MAX_S / 2))  # less than the time to a deadline
_MEMORY = quantity(units.SIZE, "4 GB", (1_000_000, 10**15))  # of a rank's shell
_RTO = quantity(units.DELAY, "10 ms", (1e-3, 1.0))
_KEPT = Kind(
    f"{_COUNT.allowed} for collectives, or {_SAMPLE.allowed.replace('10 ms', '100 ms')}",
    (int, str),
    lambda given: _SAMPLE.read(given) if isinstance(given, str) else _COUNT.read(given),
    lambda every: _SAMPLE.write(every) if isinstance(every, float) else every,
    ends=(*_COUNT.ends, *_SAMPLE.ends),
)
_SCALE = Kind(
    f'text such as "1/1000", 1 to 1/{MAX_DIVISOR}',
    (str, int),
    lambda n: RateScale.parse(str(n)),
    str,
    is_object=True,
    ends=(1, f"1/{MAX_DIVISOR}"),
)
_EMULATED = Kind(
    emulated.ALLOWED,
    (int, float, str),
    lambda given: emulated.parse(given) if isinstance(given, str) else _COUNT.read(given),
    lambda which: which if isinstance(which, int) else str(which),
    is_object=True,
    ends=(*_COUNT.ends, "1-2", "every 3rd"),
)
CHOSEN = "chosen"
"""The value of a number that the timing model chooses."""
_ONE_NUMBER = whole(1, 4096)
_PIECES = Kind(
    f'{_ONE_NUMBER.allowed}, or "{CHOSEN}"',
    (int, str),
    lambda given: None if given == CHOSEN else _ONE_NUMBER.read(given),
    lambda pieces: CHOSEN if pieces is None else pieces,
    ends=_ONE_NUMBER.ends,
)
_SOME_MACHINES = whole(1, MAX_SITES)
_MACHINES = Kind(
    f'{_SOME_MACHINES.allowed}, or "auto"',
    (int, str),
    lambda given: AUTO if given == "auto" else _SOME_MACHINES.read(given),
    lambda machines: "auto" if machines == AUTO else machines,
    ends=_SOME_MACHINES.ends,
)
_MODE = texts(f"{', '.join(MODES)}, or the name of a policy", NAME.fullmatch)
_MODES = Kind(
    f"a list of {', '.join(MODES)} and the names of policies",
    (list,),
    lambda modes: unique(map(_MODE.read, modes), modes),
    list,
)
_WANTED = texts('text such as "mode=wan" or "algorithm=ring"', re.compile(r"[^=]+=[^=]+").fullmatch)
_BASELINE = Kind(
    f"a list of {_WANTED.allowed}",
    (list,),
    lambda given: unique(map(_WANTED.read, given), given) if given else (),
    list,
)
REFEREES = ("ring", "schedule", "policy")
_REFEREES = Kind(
    f"a list of {', '.join(REFEREES)}",
    (list,),
    lambda names: unique(map(one_of(*REFEREES).read, names), names) if names else (),
    list,
)
_WAN = Kind(ALLOWED, (str, dict), read_wan, write_wan, is_object=True)
_NODE = texts("the name of a node of the map, in printable text", lambda text: text and text.isprintable())
_NODES = Kind(
    "a list of a node's name for each site", (list,), lambda nodes: tuple(map(_NODE.read, nodes)), list, is_object=True
)
_ALL, _EACH, _TIER = whole(2, 2 * MAX_GPUS_PER_SITE), whole(1, MAX_GPUS_PER_SITE), whole(1, MAX_SWITCHES_PER_TIER)
_GPUS = Kind(
    f"{_ALL.allowed} for two equal sites, or a list with {_EACH.allowed} for each site (as an option 3+5)",
    (int, list),
    lambda gpus: tuple(map(_EACH.read, gpus)) if isinstance(gpus, list) else even_split(_ALL.read(gpus)),
    lambda sites: sum(sites) if sites == sites[:1] * 2 else list(sites),
    ends=_ALL.ends,
)
_SWITCHES = Kind(
    f"{_TIER.allowed}, or a list of one for each site",
    (int, list),
    lambda counts: tuple(map(_TIER.read, counts)) if isinstance(counts, list) else _TIER.read(counts),
    lambda counts: list(counts) if isinstance(counts, tuple) else counts,
    ends=_TIER.ends,
)
_RATIO = numbers((int, float), 0.01, 1000)
_RATIOS = Kind(
    f"{_RATIO.allowed}, or a list of one for the leaves and one for the spines",
    (int, float, list),
    lambda ratios: _read_ratios(ratios) if isinstance(ratios, list) else (_RATIO.read(ratios),),
    lambda ratios: ratios[0] if len(ratios) == 1 else list(ratios),
    ends=_RATIO.ends,
)
_FAULTS = _tables("fault", faults.read)
_JOBS = _tables("job", jobs.read)
_ROLES = _tables("program.role", roles.read)
_CLASSES = _tables("class", classes.read)
_LINKS = Kind(
    "a table of links, each with a rate, a delay or both",
    (dict,),
    link_overrides.read,
    link_overrides.write,
    is_object=True,
)
_LOAD = Kind(
    "a table with the matrices of a pack, and routing, peak, step or speedup, and repeat",
    (dict,),
    background_load.read,
    background_load.write,
    is_object=True,
)
_MOVES = texts('a pack with moving links, such as "satellites:FOLDER@0 s-200 s"', lambda text: text.isprintable())
_POLICIES = _tables("policy", policy.read)
_QUEUE = one_of("fair", "fifo")
_DRAWN = SAMPLERS[:4]
_GAUSSIAN, _MARKOV, _AR1, _TRACE = ("gaussian",), ("markov",), ("ar1",), ("trace",)

KEYS: Mapping[str, Key] = {
    key.name: key
    for key in (
        Key("name", "name", _TITLE, "The scenario's name."),
        Key("fabric.gpus", "gpus_per_site", _GPUS, "GPUs in total, on two equal sites, or in each site."),
        Key("fabric.leaves", "leaves", _SWITCHES, "Leaf switches of a site; its GPUs are divided among them."),
        Key("fabric.spines", "spines", _SWITCHES, "Spine switches of a site."),
        Key("fabric.border_routers", "border_routers", _SWITCHES, "Border routers of a site, with the WAN links."),
        Key("fabric.wan", "wan", _WAN, "The WAN between border routers: a preset, a map, or routers and links."),
        Key("fabric.sites", "sites", _NODES, "The nodes of the map at which the sites are."),
        Key(
            "fabric.paths",
            "paths",
            whole(1, MAX_PATHS),
            "Candidate paths between two border routers, shortest first; by default all, on a map at least four.",
        ),
        Key("fabric.grain", "grain", one_of(*GRAINS), "What has a rate: logical links, or ports of cables."),
        Key("fabric.routing", "routing", one_of(*ROUTINGS), "Routing of flows whose paths no mode chooses."),
        Key(
            "fabric.rails",
            "rails",
            _TIER,
            "Planes that replace leaves and spines; a GPU has a port with an equal share of its rate on each.",
        ),
        Key(
            "fabric.oversubscription",
            "oversubscription",
            _RATIOS,
            "Downlink over uplink capacity of leaves and of spines; by default all ports have the same rate.",
        ),
        Key("fabric.hash_seed", "hash_seed", whole(0, MAX_HASH_SEED), "Seed of the hash by which ecmp chooses paths."),
        Key(
            "fabric.buffer",
            "buffer_bytes",
            _FRAMES,
            "Size of a link's fifo queue; by default unlimited.",
            within="transport",
        ),
        Key(
            "fabric.wan_loss",
            "wan_loss",
            _LOSS,
            "Random frame loss of each WAN link; needs a buffer.",
            within="transport",
        ),
        Key("conditions.sampler", "sampler", one_of(*SAMPLERS), "Source of each link's available bandwidth."),
        Key("conditions.intra_rate", "intra_rate_bps", RATES, "Range of available bandwidths within a site."),
        Key("conditions.wan_rate", "wan_rate_bps", RATES, "Range of available WAN bandwidths.", _DRAWN),
        Key("conditions.intra_delay", "intra_delay_s", LINK_DELAY, "Propagation delay of a link within a site."),
        Key("conditions.wan_delay", "wan_delay_s", LINK_DELAY, "Propagation delay of a WAN link."),
        Key("conditions.mean", "mean", _SHARE, "Mean of the bandwidths before they are clipped.", _GAUSSIAN),
        Key("conditions.deviation", "deviation", _SHARE, "Their standard deviation before clipping.", _GAUSSIAN),
        Key("conditions.mean_stay", "mean_stay", _STAY, "Mean time until a link's bandwidth changes.", _MARKOV),
        Key("conditions.coefficient", "coefficient", _COEFFICIENT, "Coefficient of the process per collective.", _AR1),
        Key("conditions.trace", "trace", _FILE, "Recorded bandwidths; path relative to the scenario's file.", _TRACE),
        Key("conditions.trace_step", "trace_step_s", _STEP, "Time in the trace between two collectives.", _TRACE),
        Key("conditions.trace_repeat", "trace_repeat", TRUTH, "Whether it begins again after its last row.", _TRACE),
        Key("conditions.links", "links", _LINKS, "Rates and delays of single links, by class, pattern or name."),
        Key("conditions.load", "load", _LOAD, "Background load that WAN links carry: traffic matrices of a pack."),
        Key("conditions.moves", "moves", _MOVES, "WAN links that move while a program runs: a span of a pack."),
        Key("conditions.every", "every_s", _EVERY, "Time between two changes of conditions; by default a collective."),
        Key("conditions.interval", "interval_s", _EVERY, "Time from a collective to the next, with every.", _DRAWN),
        Key(
            "collective.kind",
            "kind",
            one_of(*ALGORITHMS, MESSAGES, TRAINING, TRACE),
            "The collective that is repeated.",
        ),
        Key("collective.algorithm", "algorithm", _ALGORITHM, "Its algorithm; by default the first of its kind."),
        Key("collective.channels", "channels", whole(1, 64), "Parallel rings, every other one in reverse direction."),
        Key(
            "collective.pieces",
            "pieces",
            _PIECES,
            "Messages into which each block is split, for pipelining; by default chosen by the model.",
        ),
        Key("collective.schedule", "schedule", SCHEDULE_FILE, "Schedule file; path relative to the scenario's file."),
        Key(
            "collective.tflops", "tflops", _TFLOPS, "Speed of a GPU, 10^12 operations a second, for num_ops of a trace."
        ),
        Key("collective.chunk", "chunk_bytes", SIZE, "Bytes of a block: what each GPU contributes to an allgather."),
        Key("collective.size", "size_bytes", SIZE, "Bytes of the whole buffer, in place of collective.chunk."),
        Key("collective.count", "count", _COUNT, "How many collectives the model computes."),
        Key("collective.reembed_every", "reembed_every", _COUNT, "Collectives after which a new ring is chosen."),
        Key("collective.ring", "ring", one_of(*OBJECTIVES), "Objective that a ring minimizes."),
        Key(
            "collective.emulated",
            "emulated",
            _EMULATED,
            "Which of them the emulation measures: a number, from the first on, a range or a period.",
        ),
        Key("collective.budget", "budget_s", DELAY, "Longest acceptable time; results tell whether it is kept."),
        Key("run.modes", "modes", _MODES, "Modes to compare: nothing adapts, rings do, WAN paths do, or both."),
        Key("run.baseline", "baseline", _BASELINE, "What others are compared with: a mode, or a swept key's value."),
        Key("run.referees", "referees", _REFEREES, "References for the times: the best ring, schedule or policy."),
        Key("run.search", "search", _SEARCH, "Time to search for each best schedule, by the solver's own clock."),
        Key("run.seed", "seed", whole(0, MAX_SEED), "Seed of all random numbers."),
        Key("run.clock", "clock", one_of("virtual", "wall"), "Clock of the emulation; wall is real time."),
        Key(
            "run.machines",
            "machines",
            _MACHINES,
            "VMs among which the emulation divides the sites; auto: by cores, points and GPUs.",
        ),
        Key("run.rate_scale", "scale", _SCALE, "Factor for rates and chunks on the wall clock."),
        Key("transport.line_rate", "line_rate", TRUTH, "Whether flows start at line rate, not in slow start."),
        Key("transport.congestion_control", "congestion_control", _CONTROL, "TCP's congestion control."),
        Key("transport.slow_start_after_idle", "slow_start_after_idle", TRUTH, "Whether idle flows slow-start."),
        Key("transport.rto_min", "rto_min_s", _RTO, "Lower bound of TCP's retransmission timeout, in virtual time."),
        Key("transport.queue", "queue", _QUEUE, "Queueing where flows share a link; the wall clock always uses fifo."),
        Key("transport.ecn_threshold", "ecn_threshold_bytes", _MARKS, "Fifo queue length that marks frames."),
        Key(
            "transport.rdma",
            "rdma",
            one_of(*RDMA),
            "Verbs devices for programs: soft-RoCE or soft-iWARP.",
        ),
        Key(
            "transport.protocol",
            "protocol",
            one_of(TCP, VERBS),
            "What carries collectives: TCP, or RDMA verbs over soft-RoCE.",
        ),
        Key("program.command", "command", roles.COMMAND, "Your own program, run on the GPUs' hosts; also --exec."),
        Key("program.role", "roles", _ROLES, "Commands for some of its ranks each; also [[program]] tables."),
        Key("program.ranks", "ranks", program.RANKS, "GPUs that it runs on, its rank 0 first; by default all."),
        Key(
            "program.backend",
            "backend",
            one_of(*program.BACKENDS),
            "Backend of torch.distributed: the script's or longhaul.",
        ),
        Key(
            "program.gpu",
            "gpu",
            gpu.GPU,
            "GPU whose time a torch script takes, by name or by numbers; by default none.",
        ),
        Key("program.kernels", "kernels", gpu.TABLE, "Measured kernel times; path relative to the scenario's file."),
        Key(
            "program.tensors",
            "tensors",
            one_of(*program.TENSORS),
            "Tensors of a script with program.gpu; fake ones have no values and take no memory.",
        ),
        Key("program.preload", "preload", program.MODULES, "Python modules that are loaded once, for all ranks."),
        Key("program.env", "env", roles.ENV, "Variables of its environment."),
        Key("program.deadline", "deadline_s", DELAY, "Time after which it is ended, by the clock of the run."),
        Key("program.sample", "sample_s", DELAY, "Time between readings of the WAN ports' counters, by that clock."),
        Key("program.patience", "patience_s", DELAY, "Processor time for which virtual time may stand still."),
        Key("program.message", "message_bytes", SIZE, "Size of the messages for which WAN paths are chosen."),
        Key("program.memory", "memory_bytes", _MEMORY, "Memory for all of its processes."),
        Key("program.processes", "processes", program.PROCESSES, "Processes and threads of a rank, on average."),
        Key("program.output", "output_bytes", SIZE, "How much of a rank's output is kept, and of its error output."),
        Key("program.files", "files_bytes", SIZE, "Room for the files that it writes."),
        Key(
            "program.capture",
            "capture",
            program.CAPTURE,
            "Links whose packets are captured, of collectives too; also --capture.",
        ),
        Key("program.date", "date", program.DATE, "Date at which it begins; host is this machine's."),
        Key("training.pipeline", "pipeline", one_of(*PIPELINES), "Order in which stages process micro-batches."),
        Key("training.micro_batches", "micro_batches", whole(1, 4096), "Micro-batches of a replica in an iteration."),
        Key("training.chunks", "chunks", whole(1, 64), "Model chunks of a stage, for interleaved."),
        Key("training.replicas", "replicas", whole(1, MAX_REPLICAS), "Data-parallel replicas of the pipeline."),
        Key(
            "training.across", "across", one_of(*ACROSS), "What sites divide: the stages of replicas, or the replicas."
        ),
        Key("training.forward", "forward_s", DELAY, "Time of a micro-batch's forward pass in a stage."),
        Key("training.backward", "backward_s", DELAY, "Time of a micro-batch's backward pass in a stage."),
        Key(
            "training.weights",
            "weights_s",
            _WEIGHTS,
            "Its part for weight gradients, for zero-bubble; by default half.",
        ),
        Key("training.activations", "activation_bytes", SIZE, "Bytes of a micro-batch between two stages, each way."),
        Key("training.held", "held_bytes", SIZE, "Bytes kept until a micro-batch's backward; by default as many."),
        Key("training.memory", "memory_bytes", SIZE, "Memory of a GPU for them; by default enough."),
        Key("training.gradients", "gradients", one_of(*GRADIENTS), "Algorithm by which replicas sum their gradients."),
        Key("training.gradient_size", "gradient_bytes", SIZE, "Bytes of a stage's gradients."),
        Key("training.buckets", "buckets", whole(1, 256), "Buckets of gradients, summed during the last backward."),
        Key("training.every", "every", whole(1, 1000), "Iterations per gradient sum; together a collective."),
        Key(
            "training.fragments",
            "fragments",
            whole(1, 1000),
            "Fragments of the model, each summed once in these iterations, in turn.",
        ),
        Key("training.overlap", "overlap", whole(0, 1000), "Iterations that go on while a fragment is summed."),
        Key("training.bits", "bits", whole(1, VALUE_BITS), f"Bits sent for each {VALUE_BITS} bits of gradients."),
        Key("control.counted", "counted", TRUTH, "Whether a collective's time includes the reconfiguration before it."),
        Key(
            "control.delay",
            "delay_s",
            _CONTROL_DELAY,
            "One-way delay from the controller to the switches, or to those of each site.",
        ),
        Key("control.probe", "probe_bytes", _PROBE, "Size of a probe; probed knowledge sends one on each path."),
        Key(
            "control.knowledge",
            "knowledge",
            policy.KNOWLEDGE,
            "What modes know of the links' rates, unless a policy has knowledge of its own.",
        ),
        Key(
            "admission.protect",
            "protect",
            one_of(*admission.PROTECT),
            "What promises to transfers are protected from: nothing, or the failure of any one WAN link.",
        ),
        Key("admission.recovery", "recovery_s", _RECOVERY, "Time reserved before each deadline for a link failure."),
        Key("te.every", "every", _KEPT, "How long tunnel rates are kept, unless a link fails or recovers."),
        Key(
            "te.pieces",
            "pieces",
            whole(1, MAX_PIECES),
            "Pieces into which each WAN message is split; each takes a tunnel.",
            within="fabric",
        ),
        Key(
            "te.objective",
            "objective",
            one_of(*TE_OBJECTIVES),
            "What the split over tunnels minimises: mean delay, or the highest utilisation of a WAN link, then delay.",
            within="fabric",
        ),
        Key(
            "te.demand",
            "demand",
            one_of("requested", te.MEASURED),
            "Demand of a class between two sites: what its jobs request, or what counters of its tunnels measured.",
        ),
        Key("te.sample", "sample_s", _SAMPLE, "Time over which the rate of a measured demand is averaged."),
        Key("job", "jobs", _JOBS, "Jobs that run at the same time in each round, each on its GPUs."),
        Key("class", "classes", _CLASSES, "Traffic classes: their order of service on WAN ports, and their shares."),
        Key("policy", "policies", _POLICIES, "Your own modes: when they choose rings and paths, knowing what."),
        Key("fault", "faults", _FAULTS, "Faults: what fails, when, and for how long."),
    )
}
"""Every key of a scenario except those of [sweep], in the order in which they are written."""

OUTERMOST = ("fabric.gpus", "collective.chunk", "conditions.wan_delay")
SWEPT = (
    *OUTERMOST,
    *(
        key
        for key in KEYS
        if key
        not in (
            *OUTERMOST,
            "name",
            "fabric.grain",
            "run.modes",
            "run.baseline",
            "run.referees",
            "run.search",
            "run.clock",
            "run.machines",
            "policy",
        )
        and (key in ("program.backend", "program.gpu", "program.tensors") or not key.startswith("program."))
    ),
)
"""The keys that a sweep may vary, the outermost axis first.

Modes are not an axis, since every configuration has all of them. Nor is the grain: a rate means something different in
the other grain, so one table of results cannot hold both.
"""
