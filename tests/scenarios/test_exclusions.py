"""Features that exclude each other: each alone can be run, and a scenario with both is refused in one sentence."""

from typing import Any

import pytest
import tomli_w

from scenarios.spec import ScenarioError
from scenarios.spec.exclusions import TABLE, rows
from scenarios.spec.load import scenario_of

Part = dict[str, Any]
WALL: Part = {"run": {"clock": "wall"}}
FIFO: Part = {"transport": {"queue": "fifo"}}
BUFFER: Part = {"transport": {"queue": "fifo"}, "fabric": {"buffer": "500 kB"}}
RAILS: Part = {"fabric": {"grain": "physical", "rails": 2}}
TE, ECMP, SPRAY = ({"fabric": {"routing": name}} for name in ("te", "ecmp", "spray"))
TIMED: Part = {"conditions": {"every": "2 ms"}}
COUNTED: Part = {"control": {"counted": True}}
PROGRAM: Part = {"program": {"command": "true"}}
SCRIPT: Part = {"program": {"command": "true", "backend": "longhaul"}}
JOB: Part = {"ranks": [1, 5]}
CLASSES: Part = {"class": [{"name": "gold", "priority": 1}], "job": [JOB | {"class": "gold"}]}
CEILING: Part = {"class": [{"name": "gold", "priority": 1, "ceiling": 0.5}], "job": [JOB | {"class": "gold"}]}
FAULT: Part = {"fault": [{"at": "collective 1", "what": "link s0b0-s1b0 down"}]}
COPY: Part = {"kind": "transfer", "ranks": [0, 4], "size": "1 MB", "deadline": "2 s"}
TRANSFER: Part = {"run": {"modes": ["base"]}, "job": [COPY]}
STREAM: Part = TRANSFER | {"job": [COPY | {"size": None, "deadline": None, "rate": "1 Mbit/s", "duration": "1 s"}]}
ADMITTED: Part = TRANSFER | SPRAY
VERBS: Part = {"transport": {"protocol": "verbs"}}
MACHINES: Part = {"run": {"machines": 2}}
PARTLY: Part = {"collective": {"emulated": "every 3rd"}}
MIXED: Part = ADMITTED | {"job": [COPY | {"class": "gold"}, JOB], "class": [{"name": "gold", "priority": 0}]}


def mode(**keys: object) -> Part:
    return {"run": {"modes": ["mine"]}, "policy": [{"name": "mine", **keys}]}


def referees(*names: str) -> Part:
    return {"run": {"referees": [*names]}, "collective": {"count": 9, "emulated": 9}}


PROBES, READS = mode(reroute="every", knowledge="probed"), mode(reroute="every", knowledge="measured ports")
ENDS = mode(reroute="every", knowledge="measured ends")
BY_TIME = TIMED | mode(reroute="every 10 ms")
PAIRS: list[tuple[Part, Part, str]] = [
    (BUFFER, WALL, "fabric.buffer: 500 kB cannot be combined with the wall clock"),
    (
        BUFFER,
        RAILS | mode(reroute="every 2"),
        "fabric.buffer: 500 kB cannot be combined with a mode that keeps WAN paths",
    ),
    (
        BUFFER,
        {"fault": [{"at": "collective 1", "what": "link s0b0-s1b0 loss 1 %"}]},
        "fabric.buffer: 500 kB cannot be combined with a link loss",
    ),
    (
        {"transport": {"rdma": "rxe"}, "program": {"command": "true"}},
        WALL,
        "transport.rdma: rxe cannot be combined with the wall clock",
    ),
    (VERBS, WALL, "transport.protocol: verbs cannot be combined with the wall clock"),
    (VERBS, PROGRAM, "transport.protocol: verbs cannot be combined with a program that is run"),
    (VERBS, ECMP, "transport.protocol: verbs cannot be combined with a fabric.routing that spreads flows"),
    (VERBS, TE, "transport.protocol: verbs cannot be combined with fabric.routing"),
    ({"transport": {"rto_min": "5 ms"}}, WALL, "transport.rto_min: 5 ms cannot be combined with the wall clock"),
    (
        {"program": {"command": "true", "date": "2026-01-01T00:00:00"}},
        WALL,
        "program.date: 2026-01-01T00:00:00 cannot be combined with the wall clock",
    ),
    (PROBES, WALL, "run.modes: mine, which probes, cannot be combined with the wall clock"),
    (
        PROBES | {"transport": {"line_rate": False}},
        COUNTED,
        "run.modes: mine, which probes, cannot be combined with control.counted true",
    ),
    (
        PROBES,
        BUFFER | {"fabric": {"buffer": "251 kB"}},  # a probe of 250 kB has 28 frames, and so 251,848 bytes
        "run.modes: mine, which probes, cannot be combined with a fabric.buffer smaller than a probe",
    ),
    (TIMED, WALL, "conditions.every: 2 ms cannot be combined with the wall clock"),
    (BY_TIME, FAULT, 'policy[1].reroute: "every 10 ms" cannot be combined with faults of collectives'),
    (
        {"fault": [{"at": "collective 1", "what": "agent 3 slow 5x"}]},
        TIMED,
        "fault[1]: agent 3 slow 5x at collective 1 cannot be combined with conditions.every",
    ),
    (BY_TIME, FIFO, 'policy[1].reroute: "every 10 ms" cannot be combined with transport.queue "fifo"'),
    (
        BY_TIME,
        referees("policy"),
        'policy[1].reroute: "every 10 ms" cannot be combined with the best policy in run.referees',
    ),
    (CLASSES, WALL, "class: classes cannot be combined with the wall clock"),
    (TRANSFER, WALL, "job: transfers cannot be combined with the wall clock"),
    (ADMITTED, FIFO, 'job: an admitted transfer cannot be combined with transport.queue "fifo"'),
    (
        STREAM | SPRAY,
        {"fabric": {"routing": "ecmp"}},
        "job[1].rate: a rate of 1,000,000 bit/s cannot be combined with a",
    ),
    (MIXED, {"run": {"modes": ["wan"]}}, "run.modes: wan, which chooses WAN paths, cannot be combined with an adm"),
    (
        ADMITTED,
        {"transport": {"line_rate": False}},
        "transport.line_rate: false cannot be combined with an admitted transfer",
    ),
    (
        ADMITTED,
        {"transport": {"slow_start_after_idle": True}},
        "transport.slow_start_after_idle: true cannot be combined with an admitted transfer",
    ),
    (
        MIXED,
        {"fabric": {"grain": "physical"}},
        "fabric.grain: physical cannot be combined with admitted transfers together with other jobs",
    ),
    (
        MIXED,
        {"class": [{"name": "gold", "priority": 0, "ceiling": 0.7}]},
        "class: the ceiling 0.7 of gold cannot be combined with admitted transfers together with other jobs",
    ),
    (TE, WALL, "fabric.routing: te cannot be combined with the wall clock"),
    (TE | {"fabric": {"routing": "te", "wan": "five-router"}}, TIMED, "fabric.routing: te cannot be combined with"),
    (
        TE | {"te": {"every": "100 ms", "demand": "measured"}},
        COUNTED,
        "te.every: 100 ms cannot be combined with control.counted true",
    ),
    (
        TE | {"fabric": {"routing": "te", "grain": "physical", "rails": 2}},
        FAULT,
        "fabric.routing: te cannot be combined",
    ),
    (TE, CEILING, "fabric.routing: te cannot be combined with a class with a ceiling below 1"),
    (TE, mode(reembed="drift 0.1"), "run.modes: mine, which does not choose rings by their number alone, cannot be"),
    (TE, mode(reembed="every", knowledge="measured ends"), "run.modes: mine, which knows measured ends, cannot be"),
    (
        TE | {"te": {"every": "100 ms", "demand": "measured"}},
        {"te": {"demand": "requested"}},
        'te.every: 100 ms cannot be combined with te.demand "requested"',
    ),
    (PARTLY, READS, "collective.emulated: every 3rd cannot be combined with a mode with measured knowledge"),
    (
        PARTLY,
        TE | {"te": {"every": "100 ms", "demand": "measured"}},
        'collective.emulated: every 3rd cannot be combined with te.demand "measured"',
    ),
    (PARTLY, BUFFER, "collective.emulated: every 3rd cannot be combined with fabric.buffer"),
    (referees("policy"), {"job": [JOB]}, 'run.referees: ["policy"] cannot be combined with jobs'),
    (referees("policy"), FAULT, 'run.referees: ["policy"] cannot be combined with faults'),
    (
        referees("policy"),
        {"collective": {"kind": "training"}},
        'run.referees: ["policy"] cannot be combined with collective.kind "training"',
    ),
    (
        PROGRAM,
        {"class": [{"name": "gold", "priority": 1, "congestion_control": "bbr"}]},
        "class: the congestion control bbr of gold cannot be combined with a program without jobs",
    ),
    (TE | PROGRAM, {"job": [JOB]}, 'fabric.routing: a program with fabric.routing "te" cannot be combined with jobs'),
    (
        TE | PROGRAM,
        {"class": [{"name": "gold", "priority": 1}]},
        'fabric.routing: a program with fabric.routing "te" cannot be combined with classes',
    ),
    (
        TE | PROGRAM,
        PROGRAM | {"fault": [{"at": "20 ms", "what": "link s0b0-s1b0 down"}]},
        'fabric.routing: a program with fabric.routing "te" cannot be combined with faults',
    ),
    (
        TE | PROGRAM,
        {"fabric": {"routing": "te", "grain": "physical", "rails": 2}},
        'fabric.routing: a program with fabric.routing "te" cannot be combined with fabric.rails',
    ),
    (
        TE | PROGRAM,
        {"control": {"delay": "1 ms"}},
        'fabric.routing: a program with fabric.routing "te" cannot be combined with control.delay',
    ),
    (PROGRAM | {"job": [JOB]}, WALL, "job: jobs beside a program cannot be combined with the wall clock"),
    (
        PROBES | PROGRAM,
        {"job": [JOB]},
        "run.modes: mine, which knows probed, cannot be combined with jobs beside a program",
    ),
    (
        mode(reembed="every", knowledge="measured ends") | SCRIPT,
        ECMP,
        "run.modes: mine, which knows measured ends, cannot be combined with a fabric that spreads a program's",
    ),
    (ENDS | SCRIPT, TE, 'run.modes: mine, which knows measured ends, cannot be combined with fabric.routing "te"'),
    (ENDS | SCRIPT, WALL, "run.modes: mine, which knows measured ends, cannot be combined with the wall clock"),
    (
        READS | TIMED | PROGRAM,
        FIFO,
        'run.modes: mine, which knows measured ports, cannot be combined with transport.queue "fifo"',
    ),
    (referees("policy"), PROGRAM, 'run.referees: ["policy"] cannot be combined with a program'),
    *(
        (MACHINES, other, f"run.machines: 2 cannot be combined with {name}")
        for other, name in (
            (WALL, "the wall clock"),
            (FAULT | {"fault": [{"at": "1 ms into collective 1", "what": "link s0b0-s1b0 down"}]}, "a fault within"),
            (
                {"fault": [{"at": "collective 1", "what": "controller killed"}]},
                "a fault within a collective, or one that",
            ),
            (PROGRAM, "a program"),
            (READS, "a mode with measured ports"),
            (FAULT | {"control": {"delay": "1 ms"}}, "a link or switch that fails beside control.delay or probes"),
            (COUNTED | {"collective": {"kind": "broadcast"}}, "control.counted with another collective than those of"),
            (TIMED, "conditions.every"),
            (TE | {"run": {"modes": ["base"]}}, "a mode whose flows share links"),
            ({"collective": {"algorithm": "hierarchical"}}, "a mode whose flows share links"),
        )
    ),
]
NEEDED = {  # pairs of which one is not possible without the other's opposite, or which need a file
    ("fabric.buffer", 'transport.queue "fair"'): "test_spec",
    ("run.referees", "outages in the trace"): "test_outages",
    ("run.referees", 'collective.kind "messages"'): "needs a file",
    ('a program with fabric.routing "te"', "outages in the trace"): "needs a file",
}


OPEN: list[tuple[Part, Part]] = [
    (MACHINES, {"program": {"capture": ["s0b0>s1b0"]}}),
    (MACHINES, FAULT),
    (MACHINES, BUFFER),
    (MACHINES, BUFFER | {"collective": {"algorithm": "hierarchical"}}),
    (MACHINES, COUNTED),
    (MACHINES, {"control": {"delay": "1 ms"}}),
    (MACHINES, PROBES),
    (MACHINES, ENDS),
    (PROBES, ECMP),
    (PROBES, SPRAY),
    (PROBES, RAILS | {"fabric": RAILS["fabric"] | {"routing": "ecmp"}}),
    (PROBES, BUFFER),
    (PROBES, TE),
    (PROBES, {"transport": {"line_rate": False}}),
    (PROBES, PROGRAM),
    ({"control": {"delay": "1 ms"}}, WALL),
    (READS, WALL),
    (PROBES, {"program": {"command": "true", "capture": ["s0b0>s1b0"]}}),
    (TRANSFER, FIFO),
    (TRANSFER, {"job": [COPY, {"ranks": [0, 1, 4, 5]}], "run": {"modes": ["base", "joint"]}}),
    (MIXED, {"fabric": {"grain": "physical", "routing": "single"}}),
    (TIMED, FAULT),
    (TIMED, CLASSES),
    (CLASSES, FIFO),
    (TIMED, COUNTED),
    (TE, COUNTED),
    (TE, {"fabric": {"grain": "physical", "rails": 2}}),
    (PROGRAM, {"class": [{"name": "gold", "priority": 1}]}),
    (PROGRAM | TIMED, READS),
    (PROGRAM, TE),
    (PROGRAM, ECMP),
    (PROGRAM, SPRAY),
    (PROGRAM, {"fault": [{"at": "1 ms into collective 1", "what": "agent 3 killed"}]}),
    (PROGRAM, RAILS),
    (ADMITTED, {"run": {"modes": ["wan"]}}),
    (ADMITTED, {"job": [COPY, JOB]}),
    (ADMITTED, CLASSES | {"job": [COPY, *CLASSES["job"]]}),
    (ADMITTED, PROGRAM),
    (ADMITTED, {"fault": [{"at": "collective 0", "what": "agent 0 killed"}]}),
    (ADMITTED, FAULT | {"admission": {"protect": "link"}}),
]
"""Pairs that were refused before they were measured (docs/validation.md)."""


def joined(one: Part, other: Part) -> Part:
    """Return both parts; of a key that both give the value of `other`, as it replaces what makes `one` possible."""
    both = dict(one)
    for key, value in other.items():
        mixed = isinstance(value, dict) and isinstance(both.get(key), dict)
        both[key] = joined(both[key], value) if mixed else value
    return both


def text(part: Part) -> str:
    plain = {key: value for key, value in part.items() if value is not None}
    plain["job"] = [{key: value for key, value in job.items() if value is not None} for job in part.get("job", [])]
    return tomli_w.dumps(plain if plain["job"] else {key: value for key, value in plain.items() if key != "job"})


@pytest.mark.parametrize(("one", "other", "says"), PAIRS)
def test_features_that_exclude_each_other_are_refused_in_one_sentence_and_each_alone_is_not(
    one: Part, other: Part, says: str
) -> None:
    scenario_of(text(one))
    if "te" not in other:  # whose key has no effect alone
        assert not scenario_of(text(other)).notes or "class" in other
    with pytest.raises(ScenarioError) as refused:
        scenario_of(text(joined(one, other)), label="my.toml")
    (line,) = refused.value.mistakes
    assert line.startswith(f"my.toml: {says}") and "; allowed: " in line


def test_every_row_of_the_table_is_met_by_a_pair_and_has_its_reason() -> None:
    met = set()
    for one, other, _ in PAIRS:
        with pytest.raises(ScenarioError) as refused:
            scenario_of(text(joined(one, other)))
        (line,) = refused.value.mistakes
        met |= {(a, b) for a, b, why in rows() if f"cannot be combined with {b}: {why};" in line}
    assert {(a, b) for a, b, _ in rows()} - met == set(NEEDED)
    assert all(row.why and row.allowed for row in TABLE) and len({*rows()}) == len(TABLE)


@pytest.mark.parametrize("parts", OPEN)
def test_features_that_were_measured_together_can_be_combined(parts: tuple[Part, Part]) -> None:
    scenario_of(text(joined(*parts)))
