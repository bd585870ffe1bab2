"""Keys that the timing model does not include: it says so, before the run and in place of "the same time"."""

from pathlib import Path

import numpy as np
import pytest

from analysis.statistics.unmodelled_keys import INSTEAD
from scenarios.engines.model import Batch, rows_of
from scenarios.experiment import command
from scenarios.experiment.run_notes import notes_of_run
from scenarios.spec.keys import KEYS
from scenarios.spec.load import scenario_of

SHARED = "[fabric]\ngpus=4\n[collective]\nkind='alltoall'\ncount=5\npieces=1\n[run]\nmodes=['base']\n"
FIFO = SHARED.replace("[collective]", "buffer='1 MB'\n[collective]") + "[transport]\nqueue='fifo'\n"
SWEPT = {
    "fabric.buffer": (FIFO.replace("buffer='1 MB'\n", ""), "['100 kB', '10 MB']"),
    "fabric.wan_loss": (FIFO, "[0.0, 0.01]"),
    "transport.line_rate": (SHARED, "[true, false]"),
    "transport.congestion_control": (SHARED, "['cubic', 'bbr']"),
    "transport.slow_start_after_idle": (SHARED, "[true, false]"),
    "transport.rto_min": (SHARED, "['10 ms', '200 ms']"),
    "transport.queue": (SHARED, "['fair', 'fifo']"),
    "transport.protocol": ("[collective]\ncount=5\npieces=1\n[run]\nmodes=['base']\n", "['tcp', 'verbs']"),
    "transport.ecn_threshold": (f"{FIFO}congestion_control='dctcp'\n", "['100 kB', '500 kB']"),
}


def of_key(key: str) -> list[str]:
    return [one for one in KEYS if one.startswith(key)]


def test_each_key_of_tcp_is_among_them() -> None:
    assert {*SWEPT} == {*INSTEAD} & {*KEYS} and {*of_key("transport.")} - {"transport.rdma"} <= {
        *SWEPT
    }  # which is for programs


@pytest.mark.parametrize("key", SWEPT)
def test_a_key_changes_no_time_of_the_model_and_is_told(key: str) -> None:
    text, values = SWEPT[key]
    configs = scenario_of(f"{text}[sweep]\n'{key}'={values}").configurations()
    times = [rows_of(Batch(0, one, ("base",), 0, 5))["base"]["completion_s"] for one in configs]
    assert len(configs) == 2 and np.array_equal(*times)
    assert f"the timing model does not include {key}: in it {INSTEAD[key]}" in notes_of_run(configs)


def test_a_key_at_its_default_is_not_told() -> None:
    assert not any("does not include" in note for note in notes_of_run(scenario_of(SHARED).configurations()))
    classes = "[[class]]\nname='a'\npriority=0\n{}[[job]]\nclass='a'\n"
    plain, own = (scenario_of(SHARED + classes.format(one)) for one in ("", "congestion_control='bbr'\n"))
    told = [[note for note in notes_of_run(one.configurations()) if "does not include" in note] for one in (plain, own)]
    assert told[0] == [] and "class.congestion_control" in told[1][0]


def test_slow_start_is_told_as_that_of_the_first_collective_or_of_each_with_new_connections() -> None:
    once, always, never = "in collective 0 and the first of each placement", "in every collective", "slow start"
    for text, said, other in ((f"{SHARED}[transport]\n", once, always), (FIFO, always, once)):
        notes = " ".join(notes_of_run(scenario_of(f"{text}line_rate=false\n").configurations()))
        assert said in notes and other not in notes
    assert never not in " ".join(notes_of_run(scenario_of(SHARED).configurations()))


def test_a_swept_key_has_no_verdict_by_the_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.toml"
    file.write_text(SHARED)
    sweep = ["--sweep", "transport.line_rate=true,false"]
    assert command.run([str(file), "--engine", "model", "--no-report", "--out", str(tmp_path / "r"), *sweep]) == 0
    out = capsys.readouterr().out
    assert "the timing model does not include transport.line_rate" in out
    assert "take the same time, " not in out and "line rate true = line rate false" not in out
    more = ["--sweep", "collective.channels=1,2", "--set", "collective.kind=allgather", "--out", str(tmp_path / "s")]
    assert command.run([str(file), "--engine", "model", "--no-report", *sweep, *more]) == 0
    out = capsys.readouterr().out
    assert '"channels 2, line rate false" are equal, 5.0 % below' in out  # channels are in the model
    assert "; the timing model does not include transport.line_rate." in out
