"""Training iterations as schedules: stages compute micro-batches, and exchange activations and gradients.

Every GPU is one stage of one replica of the model. A computation is a task on the GPU's stream. Activations and
gradients between stages are messages without slots. The gradients of a stage are summed over its replicas by an
AllReduce, every byte of which is verified. Each stage executes its work in the fixed order of the pipeline, and waits
for inputs that arrive late. The orders are those of Huang et al. (GPipe, NeurIPS 2019), Narayanan et al. (1F1B and
interleaved 1F1B, SC 2021) and Qi et al. (zero bubble, ZB-H1, ICLR 2024); `overlapped` is 1F1B with additional forwards
at the start of the stages before a cut between sites, as in GeoPipe (arXiv 2510.12064).

What replicas sum, and when, makes the method of training. A sum in every iteration is data parallelism. One sum in
`every` iterations is local SGD, and DiLoCo (Douillard et al., arXiv 2311.08105), whose outer optimizer sends nothing.
`fragments` of the model that are summed in turn, `overlap` and few `bits` are Streaming DiLoCo (arXiv 2501.18512).
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple

from hosts.collectives.jobs import MAX_SLOTS
from hosts.collectives.kinds import TRAINING, Sites, Workload
from hosts.collectives.kinds import schedule as collective
from hosts.collectives.schedule import Flow, Schedule, ScheduleError, Stream, Transfer, own_contributions
from topologies.units import format_count, format_delay, format_size

PIPELINES = ("1f1b", "gpipe", "interleaved", "zero-bubble", "overlapped")
GRADIENTS = ("ring", "hierarchical")
ACROSS = ("pipeline", "data")
VALUE_BITS = 32
"""The bits of a value in `Training.gradient_bytes`."""
MAX_TRANSFERS = 100_000
_WORD = 4


@dataclass(frozen=True, kw_only=True)
class Training:
    """The parameters of an iteration, or of `every` iterations with one sum of the gradients of each fragment.

    `forward_s` and `backward_s` are the times of a stage for one micro-batch, divided equally among its `chunks` (model
    chunks, for interleaving). `weights_s` (None: half) is the part of a backward for the gradients of weights, on which
    no other computation depends (zero-bubble). A micro-batch sends `activation_bytes` to the next stage and as many
    back, and keeps `held_bytes` (None: `activation_bytes`) in a stage's memory until its backward is done; that memory
    has `memory_bytes` (None: unlimited). A stage's gradients of `gradient_bytes` are summed over the replicas in
    `buckets`; a bucket is ready when its share of the last backward is done. Consecutive GPUs are the replicas of a
    stage if sites divide the `pipeline`, and the stages of a replica if they divide the `data` (`across`).

    Of `every` iterations, with P `fragments`, the gradients of fragment p = 1 ... P are due at the end of iteration
    p * every / P, rounded down. Their sum begins `overlap` iterations earlier, and a GPU begins its next iteration when
    it has the sums that are due. Each value is sent in `bits`. With one fragment and no overlap these are gradients
    (data parallelism, `every` = 1) or what `every` iterations changed in the parameters (local SGD, DiLoCo).
    """

    pipeline: str = PIPELINES[0]
    micro_batches: int = 8
    chunks: int = 1
    replicas: int = 1
    across: str = ACROSS[0]
    forward_s: float = 10e-3
    backward_s: float = 20e-3
    weights_s: float | None = None
    activation_bytes: int = 8_000_000
    held_bytes: int | None = None
    memory_bytes: int | None = None
    gradients: str = GRADIENTS[0]
    gradient_bytes: int = 64_000_000
    buckets: int = 1
    every: int = 1
    fragments: int = 1
    overlap: int = 0
    bits: int = VALUE_BITS

    @property
    def syncs(self) -> tuple[tuple[int, int], ...]:
        """For each fragment, the iterations after which its sum begins and is due; 0 is before the first."""
        dues = [fragment * self.every // self.fragments for fragment in range(1, self.fragments + 1)]
        return tuple((due - self.overlap, due) for due in dues)

    @property
    def kept_bytes(self) -> int:
        """The bytes that a micro-batch occupies in a stage's memory."""
        return self.activation_bytes if self.held_bytes is None else self.held_bytes

    def stages(self, gpus: int) -> int:
        """Return the number of stages on `gpus` GPUs; raises ScheduleError if it is not a whole number."""
        if gpus % self.replicas:
            raise ScheduleError(f"{self.replicas} replicas on {gpus} GPUs; allowed: a divisor of the number of GPUs")
        return gpus // self.replicas

    def words(self, gpus: int) -> str:
        """Return a summary in words: "4 stages x 8 micro-batches, 2 replicas"."""
        replicas = f", {self.replicas} replicas" if self.replicas > 1 else ""
        stages = format_count(gpus // self.replicas, "stage")
        return f"{stages} x {format_count(self.micro_batches, 'micro-batch')}{replicas}"

    def place(self, stage: int, replica: int, stages: int) -> int:
        """Return the place of a stage of a replica."""
        return stage * self.replicas + replica if self.across == ACROSS[0] else replica * stages + stage


class Work(NamedTuple):
    """One computation of a stage: "F", a forward, "B", a backward, or "W", the part of a backward for the weights."""

    what: str
    chunk: int
    micro_batch: int


@lru_cache(maxsize=256)
def stage_order(training: Training, stage: int, stages: int, extra: int = 0) -> tuple[Work, ...]:
    """Return the work of a stage in an iteration, in order, with `extra` additional forwards at the start."""
    count, chunks = training.micro_batches, training.chunks
    total, ahead = count * chunks, stages - 1 - stage
    if training.pipeline == "gpipe":
        ahead = total
    elif training.pipeline == "interleaved":
        ahead = 2 * ahead + (chunks - 1) * stages
    first = min(total, ahead + extra)

    def nth(what: str, number: int) -> Work:
        """Return the stage's `number`-th work of this kind: chunk by chunk, in groups of `stages` micro-batches."""
        round_, rest = divmod(number, stages * chunks)
        chunk, within = divmod(rest, stages) if chunks > 1 else (0, rest)
        return Work(what, chunks - 1 - chunk if what == "B" else chunk, round_ * stages + within)

    works = [nth("F", number) for number in range(first)]
    weights = 0
    for number in range(total):
        if first + number < total:
            works.append(nth("F", first + number))
        works.append(nth("B", number))
        # ZB-H1: a stage defers as many W as there are stages before it, to fill its idle time at the end.
        if training.pipeline == "zero-bubble" and number >= stage:
            works.append(nth("W", weights))
            weights += 1
    if training.pipeline == "zero-bubble":
        works += [nth("W", number) for number in range(weights, total)]
    return tuple(works)


def in_flight(training: Training, stage: int, stages: int, extra: int = 0) -> float:
    """Return the largest number of micro-batches whose activations a stage keeps at once; a chunk counts as a part."""
    ends = "W" if training.pipeline == "zero-bubble" else "B"
    now = most = 0
    for work in stage_order(training, stage, stages, extra):
        if work.what == "F":
            now += 1
            most = max(most, now)
        elif work.what == ends:
            now -= 1
    return most / training.chunks


def cuts(training: Training, sites: Sites) -> tuple[int, ...]:
    """Return the stages whose successor is in another site, for any replica."""
    stages, site = training.stages(sum(sites)), _site_of(sites)
    return tuple(
        stage
        for stage in range(stages - 1)
        if any(
            site[training.place(stage, replica, stages)] != site[training.place(stage + 1, replica, stages)]
            for replica in range(training.replicas)
        )
    )


def extra_forwards_by_stage(training: Training, sites: Sites, extra: int) -> tuple[int, ...]:
    """Return the additional forwards of each stage if stages before a cut have `extra` more than those after it."""
    stages, after = training.stages(sum(sites)), cuts(training, sites)
    return tuple(extra * sum(stage <= cut for cut in after) for stage in range(stages))


def max_extra_forwards(training: Training, sites: Sites) -> int:
    """Return the largest number of additional forwards per cut that memory and the micro-batches allow."""
    if not cuts(training, sites):
        return 0
    counts = range(1, training.micro_batches + 1)
    return bisect_left(counts, True, key=lambda extra: not _fits(training, sites, extra))


def _fits(training: Training, sites: Sites, extra: int) -> bool:
    return all(need <= have for need, have in _memory(training, sites, extra))


def _memory(training: Training, sites: Sites, extra: int) -> Iterator[tuple[float, float]]:
    """Yield, for each stage, the bytes of activations that it needs at most, and those that it has."""
    stages = training.stages(sum(sites))
    have = float("inf") if training.memory_bytes is None else training.memory_bytes
    for stage, of_stage in enumerate(extra_forwards_by_stage(training, sites, extra)):
        yield training.kept_bytes * in_flight(training, stage, stages, of_stage), have


def _site_of(sites: Sites) -> list[int]:
    return [site for site, gpus in enumerate(sites) for _ in range(gpus)]


def workload(training: Training, sites: Sites, *, extra: int = 0) -> Workload:
    """Return the iteration over the places of `sites` (GPUs per site, in order), with `extra` forwards for each cut.

    Raises ScheduleError if replicas do not divide the GPUs, for chunks that the pipeline does not support, for
    micro-batches that do not fill the chunks, for a `weights_s` that is not below `backward_s`, for a single GPU, for
    more fragments than iterations, for an overlap into another fragment's turn, for too many transfers or slots, and if
    a stage's memory is too small.
    """
    stages = _check(training, sites, extra)
    iteration = _Iteration(training, sites)
    of_stages = extra_forwards_by_stage(training, sites, extra)
    syncs = training.syncs if training.replicas > 1 else ()
    for step in range(training.every + 1):
        begun = [fragment for fragment, (begins, _) in enumerate(syncs) if begins == step]
        for replica in range(training.replicas if step else 0):
            orders = [stage_order(training, stage, stages, of_stages[stage]) for stage in range(stages)]
            iteration.pipeline(replica, orders, sums=bool(begun))
        for fragment in begun:
            for stage in range(stages):
                iteration.sums(stage, fragment)
        for fragment, (_, due) in enumerate(syncs):
            if due == step:
                iteration.await_sums(fragment)
    return iteration.workload(f"{training.pipeline} +{extra}" if extra else training.pipeline)


def _check(training: Training, sites: Sites, extra: int) -> int:
    """Validate a training and return its number of stages; raises ScheduleError."""
    gpus, count, chunks = sum(sites), training.micro_batches, training.chunks
    stages = training.stages(gpus)
    if gpus < 2:
        raise ScheduleError(f"training on {gpus} GPUs; allowed: 2 or more")
    if (chunks > 1) != (training.pipeline == "interleaved"):
        allowed = "2 or more" if training.pipeline == "interleaved" else "1"
        raise ScheduleError(f"{training.pipeline} with {chunks} chunk{'s' * (chunks != 1)} a stage; allowed: {allowed}")
    if chunks > 1 and (count % stages or stages < 2):
        raise ScheduleError(
            f"interleaved with {count} micro-batches on {stages} stages; allowed: 2 stages or more, "
            "and a multiple of the stages as micro-batches"
        )
    if training.weights_s is not None and training.weights_s >= training.backward_s:
        raise ScheduleError(
            f"training.weights of {format_delay(training.weights_s)}; allowed: less than training.backward, "
            f"{format_delay(training.backward_s)}"
        )
    every, fragments = training.every, training.fragments
    if fragments > every:
        raise ScheduleError(
            f"training.fragments of {fragments} with training.every of {every}; allowed: 1 to {every}, as a fragment "
            "is summed at the end of an iteration"
        )
    if training.overlap > every // fragments:
        raise ScheduleError(
            f"training.overlap of {training.overlap} with training.every of {every} and training.fragments of "
            f"{fragments}; allowed: 0 to {every // fragments}, as a fragment's sum ends before the next one begins"
        )
    replicas = training.replicas
    sums = chunks * training.buckets * fragments if replicas > 1 else 0
    # A chunk of a micro-batch has up to three computations and two messages; a ring AllReduce has 2 n (n - 1) messages.
    transfers = training.every * gpus * count * chunks * 5 + stages * sums * 2 * replicas * (replicas - 1)
    slots = gpus * sums * replicas
    if transfers > MAX_TRANSFERS or slots > MAX_SLOTS:
        raise ScheduleError(
            f"training of about {transfers:,} transfers and {slots:,} slots of all GPUs together; allowed: "
            f"{MAX_TRANSFERS:,} and {MAX_SLOTS:,}"
        )
    for stage, (need, have) in enumerate(_memory(training, sites, extra)):
        if need > have:
            raise ScheduleError(
                f"{training.pipeline} keeps {format_size(round(need))} of activations in stage {stage}; allowed: "
                f"training.memory, {format_size(round(have))}"
            )
    return stages


class _Iteration:
    """The schedule under construction; amounts are bytes, or seconds on a stream."""

    def __init__(self, training: Training, sites: Sites) -> None:
        self._training, self._site = training, _site_of(sites)
        self._stages = training.stages(len(self._site))
        self._flows: dict[Flow | Stream, int] = {}
        self._transfers: list[Transfer] = []
        self._ready: dict[int, list[int]] = {}  # by place: for each bucket, the computation that makes it ready
        self._received: dict[tuple[int, int], list[int]] = {}  # by fragment and place: the sum's last on each flow
        self._awaited: dict[int, list[int]] = {}  # by place: what its next computation waits for
        self._slot_sizes: list[int] = []
        self._work_names: dict[int, list[str]] = {}
        self._slots_of: dict[int, int] = {}  # by place: the number of slots with initial contents

    def pipeline(self, replica: int, orders: Sequence[Sequence[Work]], *, sums: bool) -> None:
        """Add the computations and messages of a replica; `orders` has the work of each stage in order.

        With `sums` the last backward of each chunk is divided into one computation per bucket.
        """
        if sums:  # of this iteration, not of an earlier one
            self._ready |= {self._training.place(stage, replica, self._stages): [] for stage in range(self._stages)}
        remaining = [deque(works) for works in orders]
        arrived: dict[tuple[str, int, int], int] = {}  # by kind, virtual stage and micro-batch: the input's transfer
        last = {(stage, work.chunk): work for stage, works in enumerate(orders) for work in works}
        stages, chunks, bytes_ = self._stages, self._training.chunks, _words(self._training.activation_bytes)
        while any(remaining):
            for stage, queue in enumerate(remaining):
                place = self._training.place(stage, replica, stages)
                while queue:
                    work = queue[0]
                    virtual = work.chunk * stages + stage
                    needs = (work.what, virtual, work.micro_batch)
                    has_no_input = work.what == "W" or virtual == (0 if work.what == "F" else stages * chunks - 1)
                    if not has_no_input and needs not in arrived:
                        break
                    queue.popleft()
                    after = () if has_no_input else (arrived.pop(needs),)
                    index = self._compute(
                        place, work, after, completes_gradients=sums and last[stage, work.chunk] == work
                    )
                    successor = virtual + (1 if work.what == "F" else -1)
                    if work.what != "W" and 0 <= successor < stages * chunks:
                        to = self._training.place(successor % stages, replica, stages)
                        flow = self._flow(Flow(place, to))
                        self._transfers.append(Transfer(flow=flow, size=bytes_, after=(index,)))
                        arrived[work.what, successor, work.micro_batch] = len(self._transfers) - 1

    def _compute(self, place: int, work: Work, after: tuple[int, ...], *, completes_gradients: bool) -> int:
        """Add a computation, which is one task or, if it completes gradients, one per bucket; return the last one."""
        training = self._training
        parts = training.buckets if completes_gradients else 1
        after = (*after, *self._awaited.pop(place, ()))
        seconds = training.forward_s if work.what == "F" else training.backward_s
        if training.pipeline == "zero-bubble" and work.what != "F":
            weights_s = seconds / 2 if training.weights_s is None else training.weights_s
            seconds = weights_s if work.what == "W" else seconds - weights_s
        for part in range(parts):
            size = seconds / training.chunks / parts
            self._work_names.setdefault(place, []).append(f"{work.what}{work.micro_batch}")
            self._transfers.append(
                Transfer(flow=self._flow(Stream(place)), size=size, after=after if part == 0 else ())
            )
            if completes_gradients:
                self._ready[place].append(len(self._transfers) - 1)
        return len(self._transfers) - 1

    def sums(self, stage: int, fragment: int) -> None:
        """Add one AllReduce per bucket of a fragment of a stage's gradients, over its replicas."""
        training = self._training
        at = [training.place(stage, replica, self._stages) for replica in range(training.replicas)]
        sites = tuple(len(list(row)) for _, row in groupby(self._site[place] for place in at))
        allreduce = collective("allreduce", training.gradients, sites=sites)
        buckets, fragments = training.chunks * training.buckets, training.fragments
        sent_bytes = -(-training.gradient_bytes * training.bits // VALUE_BITS)
        size = _words(-(-sent_bytes // (allreduce.slots * buckets * fragments)))
        begins, ends = allreduce.ends
        last: dict[int, int] = {}  # by flow
        for bucket in range(buckets):
            slot = (fragment * buckets + bucket) * allreduce.slots
            first, begun_flows = len(self._transfers), set[int]()
            self._slot_sizes += [size] * (slot + allreduce.slots - len(self._slot_sizes))
            for transfer in allreduce.transfers:
                src, dst = at[begins[transfer.flow]], at[ends[transfer.flow]]
                # A GPU's first message on each connection waits for its own gradients; later ones follow it in order.
                # Before the first iteration there is nothing to wait for.
                is_gated = transfer.flow not in begun_flows and src in self._ready
                gate = (self._ready[src][bucket],) if is_gated else ()
                begun_flows.add(transfer.flow)
                flow = self._flow(Flow(src, dst))
                last[flow] = len(self._transfers)
                self._transfers.append(
                    Transfer(
                        flow=flow,
                        slots=tuple((slot + here, slot + there) for here, there in transfer.slots),
                        adds=transfer.adds,
                        after=(*gate, *(first + other for other in transfer.after)),
                        size=float(size * len(transfer.slots)),
                    )
                )
        for transfer in allreduce.transfers:
            dst = at[ends[transfer.flow]]
            index = last[self._flow(Flow(at[begins[transfer.flow]], dst))]
            received = self._received.setdefault((fragment, dst), [])
            if index not in received:
                received.append(index)
        self._slots_of |= dict.fromkeys(at, allreduce.slots * buckets * fragments)

    def await_sums(self, fragment: int) -> None:
        """Let the next computation of every GPU wait until it has received the sums of this fragment."""
        for (received, place), indices in self._received.items():
            if received == fragment:
                self._awaited.setdefault(place, []).extend(indices)

    def _flow(self, flow: Flow | Stream) -> int:
        return self._flows.setdefault(flow, len(self._flows))

    def workload(self, name: str) -> Workload:
        """Return the workload of all computations and messages that have been added."""
        places, slots = len(self._site), len(self._slot_sizes)
        replicas: dict[tuple[int, int], list[int]] = {}  # replicas of a stage in a site have the same weights
        for stage in range(self._stages):
            for replica in range(self._training.replicas):
                place = self._training.place(stage, replica, self._stages)
                replicas.setdefault((stage, self._site[place]), []).append(place)
        return Workload(
            kind=TRAINING,
            algorithm=name,
            schedule=Schedule(places=places, slots=slots, flows=tuple(self._flows), transfers=tuple(self._transfers)),
            slot_bytes=1,
            slot_sizes=tuple(self._slot_sizes),
            contents=own_contributions([range(self._slots_of.get(place, 0)) for place in range(places)], slots),
            groups=tuple(tuple(group) for group in replicas.values() if len(group) > 1),
            computations=tuple(tuple(self._work_names[place]) for place in range(places)),
        )


def _words(size_bytes: int) -> int:
    return -(-size_bytes // _WORD) * _WORD
