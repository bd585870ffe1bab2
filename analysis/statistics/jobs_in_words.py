"""The jobs of a configuration in words: each of them whole, or what tells the jobs of several configurations apart.

A job is the [[job]] table that declares it, as a scenario's file has it. No words hold a comma and a blank, which
separate the parts of labels.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from topologies.text_files import short_path
from topologies.units import format_count

COLLECTIVE_NAMES = {
    "allgather": "AllGather",
    "reducescatter": "ReduceScatter",
    "allreduce": "AllReduce",
    "alltoall": "AllToAll",
    "broadcast": "Broadcast",
    "reduce": "Reduce",
    "gather": "Gather",
    "scatter": "Scatter",
    "sendrecv": "SendRecv",
    "alltoallv": "AllToAllv",
    "jobs": "round",
    "training": "iteration",
}
"""The name in text of each kind of collective."""
Job = Mapping[str, Any]
"""A [[job]] table; `name` is always given."""

BACKGROUND, REQUESTS, _TRAINING, _MESSAGES = "background", "requests", "training", ("background", "transfer")
_WORK = (
    *("kind", "size", "schedule", "pattern", "rate", "duration", "count", "every", "ranks"),
    *(
        "trace",
        "per_second",
        "input",
        "cache",
        "local_token",
        "remote_token",
        "order",
        "token",
        "slots",
        "output",
        "percentile",
    ),
)
"""The fields that define what a job does, and between which ranks. The rule of requests is a choice."""
_CHOSEN = ("rate",)
"""The fields of those that for requests are a choice: what the rule takes for the WAN's rate."""
_WITHOUT_RATE = "local"  # the rule that asks for no rate
_UNGIVEN = {
    "kind": "its kind as the collective",
    "algorithm": "its algorithm by default",
    "size": "its size as the collective",
    "count": "once",
    "every": "back to back",
    "class": "without class",
    "start": "from the start",
    "ranks": "on all GPUs",
}
"""Fields that a table leaves out, in words."""
JOINED = " + "
"""What separates the jobs of a configuration, and the entries of other tables, in words."""


def words_of(job: Job) -> str:
    """Return a job with all that its table has: "train 64 MB on GPUs 0,1,4,5"."""
    return " ".join([str(job["name"]), *_fields(job).values()])


def all_words_of(jobs: Sequence[Job]) -> str:
    """Return all jobs whole: "train 64 MB + infer 8 MB"."""
    return JOINED.join(map(words_of, jobs))


def is_same_work(one: Job, other: Job) -> bool:
    """Return whether two jobs send the same, so that their times can be compared."""
    mine, theirs = _fields(one), _fields(other)
    choices = _CHOSEN if one.get("kind") == REQUESTS else ()
    return all(mine.get(field) == theirs.get(field) for field in _WORK if field not in choices)


def differing_fields(configurations: Sequence[Sequence[Job]]) -> dict[str, tuple[str, ...]]:
    """Return by name of a job the fields in which the jobs of this name differ."""
    by_name: dict[str, list[dict[str, str]]] = {}
    for job in (job for jobs in configurations for job in jobs):
        by_name.setdefault(str(job["name"]), []).append(_fields(job))
    return {
        name: tuple(
            field
            for field in dict.fromkeys(field for fields in of_name for field in fields)
            if len({fields.get(field) for fields in of_name}) > 1
        )
        for name, of_name in by_name.items()
    }


def own_words(job: Job, fields: Iterable[str]) -> str:
    """Return these fields of a job in words, without its name: "8 MB class gold"."""
    known = _fields(job)
    if job.get("rule") == _WITHOUT_RATE:
        fields = [field for field in fields if field != "rate" or field in known]
    return " ".join(known.get(field, _UNGIVEN.get(field, f"{field} by default")) for field in fields)


def short_words(job: Job, fields: Iterable[str]) -> str:
    """Return a job with these of its fields: "infer 8 MB"."""
    return f"{job['name']} {own_words(job, fields)}".strip()


def measured_as(job: Job) -> str:
    """Return what a job's time is, if it is not the time from its start to its last arrival: "percentile 99 of first
    tokens", "mean of 5 AllGathers every 20 ms", or ""."""
    if job.get("kind") == REQUESTS:
        return f"percentile {job.get('percentile', 99):g} of first tokens"
    return f"mean of {amount_of(job)} every {job['every']}" if "every" in job and amount_of(job) else ""


def amount_of(job: Job) -> str:
    """Return how many repetitions a job's time is that of: "10 AllReduces"; "3 times" of training, of which one may
    have several iterations; "" for one."""
    kind, count = str(job.get("kind")), int(job.get("count", 1))
    if count == 1:
        return ""
    return f"{count:,} times" if kind == _TRAINING else format_count(count, COLLECTIVE_NAMES.get(kind, "repetition"))


def classes_sentence(
    configurations: Iterable[tuple[Sequence[Job], Sequence[Mapping[str, Any]] | None]], said: str = ""
) -> str:
    """Return which priority, share and ceiling the classes of jobs have, given the [[job]] and [[class]] tables of
    configurations, which `said` compares by the names of classes; "" where no class is compared, and without those
    that have several tables, or that are `said` whole."""
    used, words = dict[tuple[str, ...], None](), dict[str, set[str]]()
    for jobs, classes in configurations:
        used[tuple(str(job.get("class", "")) for job in jobs)] = None
        for one in classes or ():
            words.setdefault(str(one["name"]), set()).add(_class_words(one))
    names = dict.fromkeys(name for of_jobs in used for name in of_jobs if name)
    told = [
        f"{name} {next(iter(words[name]))}"
        for name in names
        if len(words.get(name, ())) == 1 and f"class {name} (priority" not in said
    ]
    differ = len({name for of_jobs in used for name in of_jobs}) > 1
    return f"Class{'es' * (len(told) > 1)}: {'; '.join(told)}." if told and differ else ""


def _class_words(table: Mapping[str, Any]) -> str:
    """Return a [[class]] table without its name in words: "(priority 0, 20 % assured, at most 50 %)"."""
    share, ceiling = float(table.get("share", 0)), float(table.get("ceiling", 1))
    parts = [f"priority {table['priority']}", f"{share * 100:g} % assured" * (share > 0)]
    parts += [f"at most {ceiling * 100:g} %" * (ceiling < 1), f"by {table.get('congestion_control')}"]
    return f"({', '.join(filter(None, parts[: 3 + bool(table.get('congestion_control'))]))})"


def told_apart(configurations: Sequence[Sequence[Job]]) -> list[str]:
    """Return for each configuration its jobs with what tells them from those of the others: "train alone", "train +
    infer 8 MB". Jobs are told whole if that tells no difference."""
    differing, most = differing_fields(configurations), max(map(len, configurations))
    short = [
        JOINED.join(short_words(job, differing[str(job["name"])]) for job in jobs) + " alone" * (len(jobs) == 1 < most)
        for jobs in configurations
    ]
    whole = [all_words_of(jobs) for jobs in configurations]
    return short if len(set(short)) == len(set(whole)) else whole


def shortened(labels: Sequence[str], configurations: Sequence[Sequence[Job]]) -> tuple[list[str], list[str]]:
    """Return labels of configurations in which jobs have their names and the fields in which jobs of this name differ,
    and what is left out of them, once for each name: "train allreduce on GPUs 0-3". Labels are as they were where all
    configurations have the same jobs."""
    if len({all_words_of(jobs) for jobs in configurations}) < 2:
        return [*labels], []
    differing, left_out, told = differing_fields(configurations), dict[str, str](), list[str]()
    for label, jobs in zip(labels, configurations, strict=True):
        short = {words_of(job): short_words(job, differing[str(job["name"])]) for job in jobs}
        for job in jobs:
            common = [words for field, words in _fields(job).items() if field not in differing[str(job["name"])]]
            if common and words_of(job) in label.split(", "):
                left_out.setdefault(str(job["name"]), " ".join([str(job["name"]), *common]))
        told.append(", ".join(short.get(part, part) for part in label.split(", ")))
    return told, [*left_out.values()]


def _fields(job: Job) -> dict[str, str]:
    """Return the given fields of a job in words, in the order in which they are told. `chunk` is another way to give
    the `size`."""
    written = {
        "kind": f"{job['requests']} {{}}" if "requests" in job else "{}",
        "algorithm": "{}",
        "schedule": "schedule {}",
        "size": "{}",
        "chunk": "{} messages" if job.get("kind") in _MESSAGES else "{} blocks",
        "pattern": "{}",
        "trace": "of {}",
        "per_second": "{:g} a second",
        "input": "of {} tokens",
        "cache": "{} a token",
        "local_token": "prefilled in {}",
        "remote_token": "or {}",
        "rule": "{}",
        "rate": "{}",
        "duration": "for {}",
        "channels": "{} channels",
        "pieces": "{} pieces",
        "count": "{} times",
        "every": "every {}",
        "class": "class {}",
        "start": "from {}",
        "deadline": "by {}",
        "latest": "at the latest {}",
        "order": "ordered within {}",
        "token": "a token decoded in {}",
        "slots": "{} slots",
        "output": "{} tokens decoded",
        "percentile": "percentile {}",
        "ranks": "on GPUs {}",
    }
    values = dict(job) | ({"ranks": _ranks_words(job["ranks"])} if "ranks" in job else {})
    for field in ("schedule", "trace", "rule"):
        if field in values:
            values[field] = short_path(values[field])
    default = {"count": 1, "start": "0 s", "token": "20 ms", "output": 200, "percentile": 99}
    found = {
        field: form.format(values[field])
        for field, form in written.items()
        if values.get(field) is not None and values[field] != default.get(field)
    }
    return {"size" if field == "chunk" and job.get("kind") not in _MESSAGES else field: found[field] for field in found}


def _ranks_words(ranks: Sequence[int]) -> str:
    """Return ranks in their order, runs of three or more in short: "0-3,8"."""
    runs = [[rank for _, rank in run] for _, run in groupby(enumerate(ranks), key=lambda one: one[1] - one[0])]
    parts = [f"{run[0]}-{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in runs]
    return ",".join(parts)
