"""What people type by a shell's rules or by the habit of another tool, and the sentence that every command answers."""

import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scenarios.experiment import command
from scenarios.experiment.options import parser
from scenarios.experiment.run_folder import RunFolder
from scenarios.prompt import arguments
from scenarios.run import STUDIES
from scenarios.spec import ScenarioError, scenario_names
from scenarios.spec.load import load_scenario
from scenarios.studies import harness
from tests.conftest import PROJECT
from tests.fakes.commands import scenario
from topologies.fabric.fabric import FabricSpec, build_fabric

RUN = [
    # words that lack quotes
    ("--wan-delay 10 ms", '--wan-delay 10 ms: the shell passes 2 words; allowed: quotes around them, --wan-delay "10'),
    ("paper --wan-delay 10 ms", 'quotes around them, --wan-delay "10 ms"'),
    ("--chunk 8 MB,16 MB", 'quotes around them, --chunk "8 MB,16 MB"'),
    ("--chunk 8 mb", 'quotes around them, --chunk "8 mb"'),
    ("--set conditions.wan_delay=10 ms", 'quotes around them, --set "conditions.wan_delay=10 ms"'),
    ("--set conditions.wan_rate=10 - 100 Gbit/s", 'quotes around them, --set "conditions.wan_rate=10 - 100 Gbit/s"'),
    ("--rank-output all", "--rank-output: no program is run; allowed: with --exec, or a scenario with a [program]"),
    ("--exec ping g4", 'quotes around the command, --exec "ping g4"'),
    ("--exec ping -c 3 g4 --modes base", 'quotes around the command, --exec "ping -c 3 g4"'),
    ("--capture s0b0 --exec hostname", "a link is FROM>TO, and the shell takes an unquoted > for the name of a file"),
    # commas, spaces, equals signs
    ("--modes wan joint", "commas without spaces, --modes wan,joint"),
    ("--modes wan, joint", "commas without spaces, --modes wan,joint"),
    ("--gpus 8, 16", "commas without spaces, --gpus 8,16"),
    ("--gpus 8 16 --engine model", "commas without spaces, --gpus 8,16"),
    ("--sweep fabric.gpus=8 16", "commas without spaces, --sweep fabric.gpus=8,16"),
    ("--seed 1 2", "commas without spaces, --seed 1,2"),
    ("--modes 'wan joint'", "modes separated by commas, wan,joint"),
    ("--modes 'wan;joint'", "modes separated by commas, wan,joint"),
    # lists with an empty element
    ("--seed 1,,2", '--seed: element 2 of the list "1,,2" is empty; allowed: 1,2'),
    ("--seed ,", '--seed: element 1 of the list "," is empty; allowed: one value at least'),
    ("--modes base,", '--modes: element 2 of the list "base," is empty; allowed: base'),
    ("--gpus ,8", "element 1 of the list"),
    ("--size '8 MB,, 9 MB'", "allowed: 8 MB,9 MB"),
    ("--chunk 8MB,", "allowed: 8MB"),
    ("--wan-delay 1ms,,2ms", "allowed: 1ms,2ms"),
    ("--sweep collective.algorithm=ring,", '--sweep collective.algorithm: element 2 of the list "ring," is empty'),
    ("--set 'fabric.gpus=[3,,5]'", 'element 2 of the list "[3,,5]" is empty; allowed: 3,5'),
    ("--modes all", "which all run without --modes"),
    ("--gpus 4,4", "allowed: 4+4 for GPUs of each site"),
    ("--set fabric.gpus 8", "allowed: --set fabric.gpus=8"),
    ("--set fabric.gpus = 8", "allowed: --set fabric.gpus=8"),
    ("--set fabric.gpus: 8", "allowed: --set fabric.gpus=8"),
    ("--set conditions.wan_delay 10 ms", 'allowed: --set "conditions.wan_delay=10 ms"'),
    ("--set fabric.gpus=8 run.seed=2", "sets one key; allowed: --set fabric.gpus=8 --set run.seed=2"),
    ("--collectives 5 6", "--collectives 5 6: takes one value; allowed: --collectives N"),
    # names
    ("--mode wan", "there is no option --mode (did you mean --modes?)"),
    ("--wan_delay 1ms", "there is no option --wan_delay (did you mean --wan-delay?)"),
    ("--wan-rate 10Gbit/s", "(did you mean --set conditions.wan_rate=VALUE?)"),
    ("--engine Model", '--engine: "Model" is not known; allowed: model, emulation, both (did you mean model?)'),
    ("--modes", "--modes: its value is missing; allowed: --modes MODE[,MODE]"),
    ("--json=x", "--json: takes no value"),
    ("--clock Wall", "did you mean wall?"),
    ("paper fig4a", '"fig4a" is one argument too many'),
    ("--set gpus=8", "(did you mean fabric.gpus?)"),
    ("--set fabric.chunkk=8", "(did you mean collective.chunk?)"),
    ("--set fabric.wan-delay=8", "(did you mean conditions.wan_delay?)"),
    ("--set collective.memory=8", "(did you mean program.memory or training.memory?)"),
    ("--set run.jobs=2", "(did you mean the option --jobs?)"),
    # values
    ("--chunk 8", '--chunk: 8 has no unit; allowed: text with a unit, 1 B to 1000 TB, such as "8 MB"'),
    ("--wan-delay 10", "10 has no unit"),
    ("--collectives 1,000", "(did you mean 1000, without quotes?)"),
    ("--set run.modes=[base,wan]", '(did you mean ["base", "wan"], which a shell needs in single quotes?)'),
    ("--gpus 3/5", "for each site (as an option 3+5)"),
    ("--seed -1", "--seed: -1 is too small; allowed: a whole number from 0"),
    ("--set collective.kind=broadcast --set collective.algorithm=tree --set collective.channels=4",
     "--set collective.channels: 4 channels, which tree does not have; allowed: 1, or the algorithm ring"),
    ("--set collective.kind=broadcast --set collective.channels=4", "4 channels, which chain does not have"),
    # what a command cannot have, and which can
]  # fmt: skip


@pytest.mark.parametrize(("typed", "says"), RUN)
def test_run_answers_what_was_mistyped_with_what_to_type(
    capsys: pytest.CaptureFixture[str], typed: str, says: str
) -> None:
    try:
        status: object = command.run([*shlex.split(typed), "--dry-run"])
    except SystemExit as error:
        status = error.code
    said = capsys.readouterr().err
    told = [line for line in said.splitlines() if not line.endswith(" s so far")]  # progress on a busy machine
    assert status == 2 and len(told) == 1 and says in told[0], said


@pytest.mark.parametrize(
    "typed",
    [
        "--modes wan fig4a", "--gpus 8 mine/x.toml", '--wan-delay "10 ms" paper', "--chunk 8MB paper", "--seed 1 a",
        '--set "conditions.wan_delay=10 ms" fig4a', '--exec "ping -c 3 g4" paper', "--exec hostname paper",
        '--capture "s0b0>s1b0" --exec x', "--set fabric.gpus=8 fig4a", "--gpus [3,5],8 paper", "--collectives 5 paper",
    ],
)  # fmt: skip
def test_what_is_right_is_left_alone(typed: str) -> None:
    parser().parse_args(shlex.split(typed))


@given(st.sampled_from([*scenario_names()]), st.sampled_from(["--modes wan", "--gpus 8", "--chunk 8MB", "--jobs 2"]))
def test_a_scenario_after_any_option_is_a_scenario(name: str, option: str) -> None:
    assert parser().parse_args([*option.split(), name]).scenario == name


TOOLS = [
    ("collectives", "--gpus 8,16", '--gpus: "8,16" has several values; allowed: one here (run.py sweeps)'),
    ("collectives", "--gpus 8,", 'element 2 of the list "8," is empty'),
    ("collectives", "--modes base,,wan", '--modes: element 2 of the list "base,,wan" is empty; allowed: base,wan'),
    ("collectives", "--algorithms ring,", "--algorithms: element 2 of the list"),
    ("grains", "--kinds ,allreduce", "--kinds: element 1 of the list"),
    ("grains", "--gpus 8,,16", "--gpus: element 2 of the list"),
    ("collectives", "--gpus 8 16", "--gpus 8 16: takes one value; allowed: --gpus N"),
    ("collectives", "-g 8 16", "-g 8 16: takes one value; allowed: --gpus N"),
    ("collectives", "-b", "-b/--from: its value is missing; allowed: --from SIZE"),
    ("collectives", "-i", "-i/--step: its value is missing; allowed: --step SIZE"),
    ("collectives", "--chunk 8MB", "there is no option --chunk (did you mean --from SIZE --to SIZE?)"),
    ("collectives", "--clock wall", "(did you mean --set run.clock=VALUE?)"),
    ("collectives", "--exec x", "there is no option --exec (it is an option of run.py)"),
    ("collectives", "--from 8 kB", 'quotes around them, --from "8 kB"'),
    ("collectives", "--from eight", '--from: "eight" is not a size'),
    ("collectives", "--algorithms ring tree", "commas without spaces, --algorithms ring,tree"),
    ("collectives", "--kind AllReduce", "(did you mean allreduce?)"),
    ("collectives", "--channels two", '--channels: "two" is not a whole number'),
    ("collectives", "--channels 4 --algorithms tree", "4 channels, which tree does not have"),
    ("grains", "--gpus 8 16", "commas without spaces, --gpus 8,16"),
    ("grains", "--size 64 MB", 'quotes around them, --size "64 MB"'),
    ("grains", "--wan-delay 1ms", "(did you mean --set conditions.wan_delay=VALUE?)"),
    ("permutation", "--gpus 8", "there is no option --gpus (did you mean --hosts?)"),
    ("permutation", "--hosts 1,024 x", '--hosts: "1,024" is not a whole number (did you mean 1024?)'),
    ("permutation", "--rate 100", '--rate: "100" is not a rate'),
    ("permutation", "--engine emulation", '--engine: "emulation" is not known; allowed: model, both'),
    ("referees", "--seconds 1 min", "--seconds 1 min: takes no unit; allowed: a number, --seconds SECONDS"),
    ("referees", "--gpus 8", "(did you mean --set fabric.gpus=VALUE?)"),
    ("referees", "backbone", "for which no best is known"),
    ("sizing", "--nvlink 14.4 Tbit/s", 'quotes around them, --nvlink "14.4 Tbit/s"'),
    ("sizing", "--nvlink 14", '--nvlink: "14" is not a rate'),
    ("sizing", "--compute-share 70%", '--compute-share: "70%" is not a number'),
    ("authors", "--wan-delay 10 us", 'quotes around them, --wan-delay "10 us"'),
    ("authors", "paper", '"paper" is one argument too many'),
    ("bench", "--engine both", '--engine: "both" is not known; allowed: model, emulation'),
    ("bench", "--collectives 10 20", "--collectives 10 20: takes one value"),
    ("bench_sharing", "--gpus 8 16", "commas without spaces, --gpus 8,16"),
    ("vm.__main__", "--memory 4 GB -- ls", 'quotes around them, --memory "4 GB"'),
    ("vm.__main__", "", "COMMAND is missing"),
]


@pytest.mark.parametrize(("tool", "typed", "says"), TOOLS)
def test_every_tool_answers_as_run_does(capsys: pytest.CaptureFixture[str], tool: str, typed: str, says: str) -> None:
    try:
        if tool in STUDIES:
            status = harness.main(import_module(f"scenarios.studies.{tool}").STUDY, shlex.split(typed))
        else:
            status = import_module(f"scenarios.{tool}").main(shlex.split(typed))
    except SystemExit as error:
        status = error.code
    said = [line for line in capsys.readouterr().err.splitlines() if not line.endswith(" s so far")]  # a slow machine
    assert status == 2 and len(said) == 1 and says in said[0], said


@pytest.mark.parametrize(("module", "typed", "says"), [
    ("analysis.report", "", "DIR is missing"),
    ("analysis.report", "a b", '"b" is one argument too many'),
    ("analysis.figures", ". --setting 1 2", "--setting 1 2: takes one value"),
    ("controller", "--border_routers 2", "(did you mean --border-routers?)"),
    ("scenarios.soak", "--collectives 5k", '--collectives: "5k" is not a whole number'),
    ("scenarios.tools.fault_campaign", "--patience 10 s", "takes no unit"),
])  # fmt: skip
def test_modules_that_are_commands_answer_as_run_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], module: str, typed: str, says: str
) -> None:
    own = {"analysis.report", "analysis.figures", "controller"}
    main = import_module(f"{module}.__main__" if module in own else module).main
    monkeypatch.setattr(sys, "argv", [module, *shlex.split(typed)])
    with pytest.raises(SystemExit) as ended:
        main(shlex.split(typed)) if module in own else main()
    assert ended.value.code == 2 and says in capsys.readouterr().err


def test_the_shell_that_takes_a_link_for_a_redirection_is_named_with_the_file(tmp_path: Path) -> None:
    line = f"{sys.executable} {PROJECT}/scenarios/run.py --exec hostname --capture s0b0>s1b0"
    ended = subprocess.run(["sh", "-c", line], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 2 and (tmp_path / "s1b0").read_text() == ""
    assert (
        'the shell has made the file s1b0 of the rest; allowed: quotes around it, --capture "s0b0>s1b0"' in ended.stderr
    )


FILES = [
    ('[fabric]\ngpus = "8"\n', "(did you mean 8, without quotes?)"),
    ("[collective]\nchunk = 8\n", "collective.chunk: 8 has no unit"),
    ('[run]\nmodes = "base"\n', '(did you mean ["base"]?)'),
    ('[run]\nseed = "1"\n', "(did you mean 1, without quotes?)"),
    ('chunk = "8 MB"\n', "(did you mean collective.chunk?)"),
    ("[fabric]\nchunkk = 8\n", "(did you mean collective.chunk?)"),
    ("[Fabric]\ngpus = 8\n", "(did you mean [fabric]?)"),
    ('[[collective]]\nkind = "allgather"\n', "collective: is a list of tables; allowed: one table, [collective]"),
    ('[collectiv]\nkind = "allgather"\n', "(did you mean [collective]?)"),
    ("[Fabrics]\ngpus = 4\n", "(did you mean [fabric]?)"),
    ('[[jobs]]\nname = "train"\n', "(did you mean [[job]]?)"),
    ('[faults]\nat = "collective 3"\n', "(did you mean [[fault]]?)"),
    ("[every]\ngpus = 4\n", "(did you mean conditions.every or training.every or te.every?)"),
    ("gpu = 4\n", "(did you mean program.gpu?)"),
    ("[run]\nmodes = [base, wan]\n", "texts have quotes"),
    ('[sweep]\nchunk = ["8 MB"]\n', "(did you mean collective.chunk?)"),
]


@pytest.mark.parametrize(("text", "says"), FILES)
def test_a_file_is_answered_with_one_sentence_that_names_what_was_meant(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(ScenarioError) as error:
        load_scenario(str(tmp_path / "mine.toml"))
    assert len(error.value.mistakes) == 1 and says in error.value.mistakes[0]


def test_what_is_no_scenario_is_named_as_what_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    for name in ("mine.toml", "mine.json", "run/scenario.toml"):
        (tmp_path / name).write_text("")
    for name, says in (
        ("mine", "(did you mean mine.toml?)"),
        ("paper.toml", "there is no such file (did you mean paper, the scenario of this name?)"),
        ("mine.json", "a scenario's file ends in .toml"),
        ("run", "a folder is not a scenario"),
        ("./run", "is a folder; allowed: a TOML file (did you mean run/scenario.toml, or --resume run?)"),
        ("papr", "(did you mean paper?)"),
    ):
        with pytest.raises(ScenarioError) as error:
            load_scenario(name)
        assert says in str(error.value)


def test_a_trace_is_as_long_as_a_run_needs_it_and_no_program_needs_it(tmp_path: Path) -> None:
    rows = [f"0,{link.name},1e9" for link in build_fabric(FabricSpec()).links if link.kind == "wan"]
    (tmp_path / "t.csv").write_text(
        "time,link,rate\n" + "\n".join(row.replace("1e9", "1000000000") for row in rows) + "\n"
    )
    keys = ("conditions.sampler=trace", f"conditions.trace={tmp_path / 't.csv'}", "collective.count=100000")
    with pytest.raises(ScenarioError, match=r"collective\.count: 100,000 is too large: the trace covers 1"):
        scenario(*keys)
    assert scenario(*keys, "program.command=hostname").program.command == "hostname"


def test_a_folder_that_was_not_asked_for_is_not_blamed_on_an_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").write_text("")
    assert command.run(["--engine", "model", "--collectives", "1"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("run.py: ") and "is not a folder" in said and "allowed: --out DIR" in said


def test_an_abandoned_run_leaves_no_results_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from datetime import UTC, datetime

    monkeypatch.chdir(tmp_path)
    folder = RunFolder.dated("paper-prompt", datetime.now(tz=UTC))
    folder.abandon()
    folder.close()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "results").mkdir()
    folder = RunFolder.dated("paper-prompt", datetime.now(tz=UTC))
    folder.abandon()
    folder.close()
    assert [path.name for path in tmp_path.iterdir()] == ["results"]


VERBS = ["wan", "rate", "allgather", "exit", "link", "paths"]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("ping g0 g4", "allowed: NODE CMD, such as g0 ping g4"),
        ("ping g4", "allowed: NODE CMD, such as g0 ping g4"),
        ("ping g0", "allowed: NODE CMD, such as g1 ping g0"),
        ("ifconfig", "allowed: NODE CMD, such as g0 ifconfig"),
        ("iperf3 -c g4", "allowed: NODE CMD, such as g0 iperf3 -c g4"),
    ],
)
def test_a_program_at_the_prompt_is_told_to_run_on_a_node(line: str, says: str) -> None:
    nodes = arguments.nodes(build_fabric(FabricSpec()))
    assert says in arguments.unknown_verb(line, VERBS, nodes, is_program=True)
    assert "did you mean paths?" in arguments.unknown_verb("pathes", VERBS, nodes, is_program=False)


def test_links_and_rings_may_be_typed_as_they_are_printed() -> None:
    fabric = build_fabric(FabricSpec())
    assert arguments.link_rate(fabric, "s0b0 > s1b0 40 Gbit/s") == arguments.link_rate(fabric, "s0b0>s1b0 40 Gbit/s")
    assert arguments.ring(fabric, "g0 > g1 > g2 > g3 > g4 > g5 > g6 > g7 > g0") == tuple(range(8))
    with pytest.raises(arguments.PromptError, match="are two nodes; allowed: a link as s0b0>s1b0"):
        arguments.link_delay(fabric, "s0b0 s1b0 5 ms")
    with pytest.raises(arguments.PromptError, match=r"a line is allgather \[chunk\] SIZE \[COUNT\]"):
        arguments.collective("allgather", "3 8 MB")
