"""Keys without effect: each is told in one line, with the key that would give it a meaning, and changes nothing."""

import tomllib
from functools import partial
from pathlib import Path

import pytest
import tomli_w

from scenarios import api
from scenarios.engines.model import Batch, rows_of
from scenarios.experiment import command
from scenarios.experiment.run_notes import notes_of_run
from scenarios.spec import ScenarioError
from scenarios.spec.load import Override, assignment, of_its_time, resolved, scenario_of, toml_or_text
from scenarios.spec.scenario import DEFAULTS, Scenario
from scenarios.studies import collectives, grains, harness, referees

NOISE = "[[job]]\nkind='background'\npattern='poisson'\nrate='10 Gbit/s'\nduration='9 ms'\nchunk='1 MB'\n"
COPY = "[fabric]\nrouting='spray'\n[run]\nmodes=['base']\n[[job]]\nkind='transfer'\nranks=[0, 4]\nsize='1 MB'\n"
COPY += "deadline='1 s'\n"
TRAINING = "[collective]\nkind='training'\n"
A, B = "[[class]]\nname='a'\npriority=0\n", "[[class]]\nname='b'\npriority=1\n"
POLICY = "[[policy]]\nname='p'\n"
TOLD = [
    ("[fabric]\nhash_seed=3", "fabric.hash_seed", "fabric.routing is not ecmp"),
    ("[sweep]\n'fabric.hash_seed'=[3, 4]", "sweep.fabric.hash_seed", "fabric.routing is not ecmp"),
    ("[fabric]\ngpus=[4]\nborder_routers=3", "fabric.border_routers", "fabric.gpus has one site"),
    ("[fabric]\ngpus=[4]\nwan='five-router'", "fabric.wan", "fabric.gpus has one site"),
    ("[fabric]\ngpus=[4]\npaths=2", "fabric.paths", "fabric.gpus has one site"),
    ("[conditions]\nmean=0.5", "conditions.mean", "conditions.sampler is not gaussian"),
    ("[conditions]\ninterval='2 ms'", "conditions.interval", "conditions.every is not given"),
    (
        "[conditions]\nwan_delay='5 ms'\n[conditions.links]\nwan={delay='1 ms'}",
        "conditions.wan_delay",
        "every WAN link has a length or a delay of its own",
    ),
    (
        "[conditions]\nintra_rate='1 Gbit/s'\n[conditions.links]\n'*'={rate='9 Gbit/s'}",
        "conditions.intra_rate",
        "every link within sites has a rate of its own",
    ),
    ("[te]\nevery=2", "te.every", "fabric.routing is not te"),
    ("[te]\npieces=8", "te.pieces", "fabric.routing is not te"),
    ("[fabric]\nrouting='te'\n[te]\nsample='5 ms'", "te.sample", "te.demand is not measured"),
    (
        "[fabric]\nrouting='te'\n[te]\nevery=2\n[run]\nmodes=['joint']",
        "te.every",
        "every mode chooses WAN paths itself",
    ),
    ("[collective]\ntflops=5", "collective.tflops", "neither the collective nor a job has the kind trace"),
    (
        "[collective]\nring='sum'\n[run]\nmodes=['base', 'wan']",
        "collective.ring",
        "no mode chooses rings by it, and run.referees is empty",
    ),
    (
        "[collective]\nreembed_every=3\n[run]\nmodes=['base', 'wan']",
        "collective.reembed_every",
        'no mode has "every" without a number, or "gain" without a horizon',
    ),
    (
        f"{TRAINING}reembed_every=3\n[training]\nreplicas=1\n",
        "collective.reembed_every",
        "no GPU of this collective.kind can take another's place",
    ),
    (
        f"{TRAINING}reembed_every=3\n[run]\nmodes=['p']\n{POLICY}reroute='every 2'",
        "collective.reembed_every",
        'no mode has "every" without a number, or "gain" without a horizon',
    ),
    (
        "[collective]\nsize='1 MB'\n[[job]]\nkind='alltoall'\nchunk='1 MB'",
        "collective.size",
        "every [[job]] has a size of its own",
    ),
    (
        "[collective]\nchannels=2\n[[job]]\nkind='alltoall'\nchunk='1 MB'",
        "collective.channels",
        "every [[job]] has another kind",
    ),
    (f"{TRAINING}algorithm='ring'", "collective.algorithm", "collective.kind is training, whose schedule follows from"),
    (f"{TRAINING}chunk='1 MB'", "collective.chunk", "every size is given by [training] or by a file"),
    (
        "[collective]\nchunk='1 MB'\n[[job]]\nkind='training'",
        "collective.chunk",
        "every size is given by [training] or by a file",
    ),
    (
        "[sweep]\n'collective.chunk'=['1 MB']\n[training]\nchunks=1",
        "sweep.collective.chunk",
        "every size is given by [training] or by a file",
    ),
    (
        "[collective]\nring='sum'\n[training]\nchunks=1",
        "collective.ring",
        "collective.kind is messages, trace or training, which have no ring to choose",
    ),
    ("[training]\nweights='5 ms'", "training.weights", "training.pipeline is not zero-bubble"),
    ("[training]\nbuckets=2", "training.buckets", "training.replicas is 1"),
    (f"{TRAINING}[training]\nheld='1 MB'", "training.held", "training.memory is not given"),
    (
        "[collective]\nkind='allgather'\n[training]\nmicro_batches=4",
        "training.micro_batches",
        "neither the collective nor a job has the kind training",
    ),
    (
        "[admission]\nprotect='link'",
        "admission.protect",
        "there is no [[job]] of the kind transfer with fabric.routing spray",
    ),
    (f"{COPY}[admission]\nrecovery='1 s'", "admission.recovery", "admission.protect is not link"),
    ("[control]\nprobe='100 kB'", "control.probe", "no mode has the knowledge probed"),
    ("[run]\nsearch=3", "run.search", "run.referees does not list schedule"),
    ("[run]\nrate_scale='1/10'", "run.rate_scale", "run.clock is not wall"),
    (
        "[transport]\necn_threshold='65 kB'",
        "transport.ecn_threshold",
        "transport.congestion_control is not dctcp",
    ),
    (
        "[program]\nmemory='3 GB'",
        "program.memory",
        "there is no program.command, [[program]] or --exec, and no prompt (--cli)",
    ),
    ("[program]\nranks=[1]", "program.ranks", "there is no program.command, [[program]] or --exec"),
    (f"{A}{B}[[job]]\nclass='a'", "class[2]", "no [[job]] has the class b, and no program runs"),
    (A, "class[1]", "no [[job]] has the class a"),
    (f"{A}share=0.3\n{B}share=0.2\n[[job]]\nclass='a'\n[[job]]\nclass='b'", "class[1].share", "a is served first"),
    ("[collective]\nkind='alltoall'\nring='sum'", "collective.ring", "collective.algorithm is not ring"),
    ("[collective]\nring='sum'\n[[job]]\n", "collective.ring", "collective.algorithm is not ring, or there are jobs"),
    (
        f"[collective]\nring='sum'\n[run]\nmodes=['p']\n{POLICY}reembed='every 2'\nring='cycle time'",
        "collective.ring",
        "no mode chooses rings by it",
    ),
    (f"{POLICY}reembed='every 2'\nhorizon=3", "policy[1].horizon", 'neither reroute nor reembed is "gain"'),
    (f"{POLICY}knowledge='stale 1'", "policy[1].knowledge", "reroute and reembed are never"),
    (f"{POLICY}reroute='every'\nring='sum'", "policy[1].ring", "reembed is never"),
    (
        f"{POLICY}reroute='every'\nmeasure_every='1 ms'",
        "policy[1].measure_every",
        "knowledge is not measured ports",
    ),
    (
        "[[fault]]\nat='collective 1'\nwhat='agent 1 killed'\nfor='2 collectives'",
        "fault[1].for",
        "a killed agent is restarted once it is missed",
    ),
    ("[[job]]\npattern='poisson'", "job[1].pattern", "the kind is neither background nor transfer"),
    ("[[job]]\ndeadline='1 ms'", "job[1].deadline", "the kind is not transfer"),
    (f"[[job]]\n{NOISE}count=2", "job[2].count", "the kind is background"),
    (f"{COPY}pattern='poisson'", "job[1].pattern", "the kind is transfer"),
    (
        "[[job]]\nkind='training'\nschedule='gone.goal'",
        "job[1].schedule",
        "the kind is training, which [training] desc",
    ),
    ("[[job]]\nkind='training'\nsize='8 MB'", "job[1].size", "the kind is training, which [training] describes"),
    (f"{TRAINING}[[job]]\nchunk='1 MB'", "job[1].chunk", "the kind is training, which [training] describes"),
    (f"{TRAINING}[[job]]\npieces=2", "job[1].pieces", "the kind is training, which [training] describes"),
]


def load(text: str, *values: str) -> Scenario:
    return scenario_of(text, [assignment(value) for value in values], label="my.toml")


@pytest.mark.parametrize(("text", "place", "why"), TOLD)
def test_a_key_without_effect_is_told_in_one_line_and_changes_nothing(text: str, place: str, why: str) -> None:
    found = load(text)
    (line,) = found.notes
    assert line.startswith(f"my.toml: {place}: unused: {why}")
    assert scenario_of(resolved(found)) == found and scenario_of(resolved(found)).notes == ()
    assert scenario_of(text, is_stored=True).notes == ()
    document = tomllib.loads(text)  # without the key there is the same scenario
    *tables, key = place.removeprefix("sweep.").split(".")
    if place.startswith("sweep."):
        del document["sweep"]
    elif tables and tables[0].endswith("]"):
        name, number = tables[0][:-1].split("[")
        del document[name][int(number) - 1][key]
    elif tables:
        del document[tables[0]][key]
    else:
        del document["class"][int(key[-2]) - 1]
    assert scenario_of(tomli_w.dumps(document)) == found


def test_a_mistyped_key_and_a_wrong_value_of_a_key_without_effect_are_mistakes() -> None:
    for text, says in (
        ("[fabric]\nhash_sed=1", "unknown key of"),
        ("[fabric]\nhash_seed='x'", "hash_seed"),
        ("[[job]]\npatern='poisson'", "unknown key of a job"),
        ("[[job]]\npattern='storm'", "allowed: permutation, poisson, on-off"),
    ):
        with pytest.raises(ScenarioError, match=says):
            load(text)


def test_a_key_that_only_some_configurations_of_a_sweep_use_is_not_told_and_changes_none_of_the_others() -> None:
    ecn = "[fabric]\nbuffer='1 MB'\n[transport]\nqueue='fifo'\necn_threshold='65 kB'\n"
    cubic, dctcp = load(f"{ecn}[sweep]\n'transport.congestion_control'=['cubic', 'dctcp']").configurations()
    assert (cubic.transport.ecn_threshold_bytes, dctcp.transport.ecn_threshold_bytes) == (None, 65_000)
    crossings = "{intra='reno', wan='dctcp'}, {intra='dctcp'}, {wan='bbr'}"  # a part of dctcp is enough
    swept = load(f"{ecn}[sweep]\n'transport.congestion_control'=[{crossings}]")
    found = [one.transport.ecn_threshold_bytes for one in swept.configurations()]
    assert found == [65_000, 65_000, None] and swept.notes == ()
    swept = load(f"{A}[sweep]\njob=[[], [{{class='a'}}]]")
    assert [len(one.classes) for one in swept.configurations()] == [0, 1] and swept.notes == ()
    beside = load(f"{A}[program]\ncommand='true'")  # whose packets may have its DSCP
    assert [one.name for one in beside.configurations()[0].classes] == ["a"] and beside.notes == ()
    swept = load("[sweep]\njob=[[{kind='training', chunk='1 MB'}], [{chunk='1 MB'}]]")
    assert swept.notes == ()


def test_the_share_of_the_class_that_is_served_first_changes_no_time_and_is_told_where_it_is_swept() -> None:
    of_class = [f"[{{name='a', priority=1, share={share}}}, {{name='b', priority=2, share=0.2}}]" for share in (0, 0.7)]
    jobs = "[[job]]\nclass='a'\nranks=[0, 4]\n[[job]]\nclass='b'\nranks=[1, 5]\n"
    text = f"[fabric]\nborder_routers=1\n{jobs}[sweep]\nclass=[{', '.join(of_class)}]"
    configs = load(text).configurations()
    first, second = (rows_of(Batch(0, one, ("base",), 0, 5))["base"]["completion_s"] for one in configs)
    assert first.tolist() == second.tolist()  # the oracle: what the note says
    assert [note for note in notes_of_run(configs) if "share of a class" in note] == [
        "the share of a class has no effect where a is served first, and gets what it sends, up to its ceiling"
    ]
    assert load(text).notes == ()
    admitting = "[fabric]\nrouting='spray'\n[run]\nmodes=['base']\n[[job]]\nkind='transfer'\nranks=[0, 4]\n"
    admitting += f"size='1 MB'\ndeadline='1 s'\nclass='a'\n{A}share=0.5"
    assert load(admitting).notes == ()  # tunnels of transfers leave room for it


def test_a_delay_of_the_controller_that_is_not_counted_is_told() -> None:
    def is_told(text: str) -> bool:
        told = notes_of_run(load(text).configurations())
        return any("control.delay: no collective takes longer" in note for note in told)

    delay = "[control]\ndelay='5 ms'\n"
    assert is_told(delay) and not is_told(f"{delay}counted=true\n") and not is_told("")
    assert not is_told(f"{delay}[[fault]]\nat='collective 1'\nwhat='link s0b0-s1b0 down'")


def test_keys_that_belong_to_a_value_that_an_option_replaces_are_dropped_without_a_line() -> None:
    ecmp = '[fabric]\nrouting = "ecmp"\nhash_seed = 7\n'
    assert load(ecmp).fabric.hash_seed == 7
    other = load(ecmp, "fabric.routing=spray")
    assert other.fabric.hash_seed == DEFAULTS.fabric.hash_seed and other.notes == ()
    (line,) = load("[fabric]\nhash_seed = 7\n", "collective.count=3").notes
    assert line.startswith("my.toml: fabric.hash_seed: unused: ")


def test_what_an_option_gives_is_told_even_if_it_is_the_default_or_another_option_makes_it_useless() -> None:
    (line,) = load("", "te.sample=10 ms").notes
    assert line == "--set te.sample: unused: fabric.routing is not te"
    lines = load("", "conditions.sampler=markov", "conditions.mean=0.1", "sweep.fabric.hash_seed=[1, 2]").notes
    assert [one.partition(": unused")[0] for one in lines] == ["--set conditions.mean", "--set sweep.fabric.hash_seed"]
    wanted = [Override("collective.kind", "training", ""), Override("collective.chunk", "8 MB", "--chunk")]
    (line,) = scenario_of("[collective]\nkind = 'allgather'\nchunk = '64 MB'\n", wanted).notes
    assert line.startswith("--chunk: unused: every size is given by [training]")


def test_a_key_that_another_key_without_effect_would_use_is_told_with_it() -> None:
    lines = load("[admission]\nprotect='link'\nrecovery='1 s'").notes
    assert [one.partition(": unused")[0] for one in lines] == [
        "my.toml: admission.protect",
        "my.toml: admission.recovery",
    ]


@pytest.mark.parametrize("key", ["fabric.hash_seed", "te.sample", "collective.size", "conditions.mean"])
def test_a_key_without_effect_in_a_stored_run_is_not_told(key: str) -> None:
    scenario = load("", "run.modes=['base']") if key != "collective.size" else load("[[job]]\nchunk='1 MB'")
    document = tomllib.loads(resolved(scenario))
    table, _, name = key.partition(".")
    typed = {"fabric.hash_seed": "3", "te.sample": "5 ms", "collective.size": "1 MB", "conditions.mean": "0.5"}[key]
    document.setdefault(table, {})[name] = toml_or_text(typed)
    found = scenario_of(of_its_time(tomli_w.dumps(document)), is_stored=True)
    assert found == scenario and found.notes == ()


def test_every_way_to_load_a_scenario_tells_a_key_without_effect(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "my.toml"
    path.write_text("[fabric]\nhash_seed=3\n[run]\nmodes=['base']\n[collective]\ncount=1\nemulated=1\n")
    told = f"{path}: fabric.hash_seed: unused: fabric.routing is not ecmp"
    model = "--engine", "model", "--no-report", "--out", str(tmp_path / "run")
    bandwidth = "--engine", "model", "--collectives", "1", "--from", "8 kB", "--to", "8 kB"
    for main, arguments, name in (
        (command.run, [str(path), "--dry-run"], "run.py"),
        (command.run, [str(path), *model], "run.py"),
        (command.run, [str(path), "--export", "goal", str(tmp_path / "ring.goal")], "run.py"),
        (partial(harness.main, referees.STUDY), [str(path), "--collectives", "1", "--seconds", "0"], "run.py referees"),
        (
            partial(harness.main, collectives.STUDY),
            [str(path), *bandwidth],
            "collectives.py",
        ),
        (
            partial(harness.main, grains.STUDY),
            ["--set", "fabric.hash_seed=3", "--engine", "model", "--gpus", "4"],
            "grains.py",
        ),
    ):
        assert main(arguments) == 0, name
        lines = [line for line in capsys.readouterr().err.splitlines() if ": unused: " in line]
        assert lines == [f"{name}: {told if str(path) in arguments else told.replace(f'{path}:', '--set')}"]
    with pytest.warns(api.ScenarioWarning) as warned:
        api.scenario(path)
    # what another test left open is told here, too, if its garbage is collected now
    assert [str(one.message) for one in warned if one.category is api.ScenarioWarning] == [told]
