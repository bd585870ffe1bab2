"""`run.py requests`: rules, traces, and caches that cross the testbed's WAN."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from analysis.model.serving import RULES, Serving, poisson, prefill, served
from scenarios.spec.request_trace import read
from scenarios.studies.requests import Line, _warnings, arrivals_s

PROJECT = Path(__file__).resolve().parents[2]
RULE = """
class Alternating:
    def __init__(self):
        self.count = 0

    def __call__(self, offer):
        self.count += 1
        return self.count % 2 == 0


def long_ones(offer):
    return offer.input_tokens > 8000


def wrong(offer):
    return "remote"


def failing(offer):
    return offer.tokens > 1


def leaving(offer):
    raise SystemExit("enough")


class Needy:
    def __init__(self, seed):
        pass

    def __call__(self, offer):
        return True


def talking(offer):
    import numpy as np

    print("a word")
    return np.bool_(offer.remote_s < offer.local_s)
"""


def requests(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "scenarios/run.py", "requests", "--wan-rates", "10 Gbit/s", "-n", "500", *arguments]
    return subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    path = tmp_path / "rules.py"
    path.write_text(RULE)
    return path


def test_a_rule_of_one_s_own_is_asked_and_an_object_keeps_state(rules: Path) -> None:
    ended = requests("--json", "--rules", f"local,{rules}:Alternating,{rules}:long_ones")
    assert ended.returncode == 0, ended.stderr
    local, alternating, long_ones = json.loads(ended.stdout)
    assert (local["remote"], alternating["remote"]) == (0, 0.5)
    # Tokens are exponential with a mean of 8,000: one of e is longer.
    assert long_ones["remote"] == pytest.approx(0.368, abs=0.06)


@pytest.mark.parametrize(
    "arguments,sentence",
    [
        (["--rules", "often"], '--rules: "often" is unknown; allowed: local, remote, selective, or FILE:NAME'),
        (["--rules", "{rules}:wrong"], 'returned "remote"; allowed: True for the remote site, or False'),
        (["--rules", "{rules}:failing"], "failed: AttributeError: 'Offer' object has no attribute 'tokens'"),
        (["--rules", "{rules}:leaving"], "failed: SystemExit: enough"),
        (["--rules", "{rules}:Needy"], "failed: TypeError: Needy.__init__() missing 1 required positional argument"),
        (["--rules", "{rules}:none"], 'has no function "none"'),
        (["--local", "0"], "--local: 0; allowed: 1 to 10,000"),
        (["--trace", "none.csv"], "--trace: none.csv cannot be read: No such file or directory"),
        (["--cache", "20"], "--cache: "),
        (["--per-second", "5,many"], '--per-second: "many"; allowed: numbers from 0.000001 to 1,000,000'),
        (["--per-second", "0"], '--per-second: "0"; allowed: numbers from'),
        (
            ["--per-second", "5,6", "--wan-rates", "1 Gbit/s,2 Gbit/s"],
            "--per-second: 2 rates of arrival with 2 of the WAN; allowed: several of one of the two",
        ),
    ],
)
def test_what_is_wrong_is_told_in_a_sentence(arguments: list[str], sentence: str, rules: Path) -> None:
    ended = requests(*(argument.format(rules=rules) for argument in arguments))
    assert ended.returncode == 2 and sentence in ended.stderr and "Traceback" not in ended.stderr, ended.stderr


def test_what_a_rule_prints_is_not_among_the_results_and_numpy_s_answers_are_answers(rules: Path) -> None:
    ended = requests("--json", "--rules", f"selective,{rules}:talking")
    assert ended.returncode == 0 and "a word" in ended.stderr, ended.stderr
    selective, talking = json.loads(ended.stdout)
    assert talking | {"rule": "selective"} == selective


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_dates_without_a_zone_are_utc_on_any_machine(zone: str, tmp_path: Path) -> None:
    """New York left its summer time within this hour, and is four or five hours behind the second request's zone."""
    path = tmp_path / "trace.csv"
    path.write_text("time,input,output\n2023-11-05T05:59:00,1,1\n2023-11-05T06:01:00+00:00,1,1\n2023-11-05T06:02,1,1\n")
    code = "import sys, pathlib, scenarios.spec.request_trace as r\n"
    code += "print([one.arrival_s for one in r.read(pathlib.Path(sys.argv[1]))])"
    command = [sys.executable, "-c", code, str(path)]
    ended = subprocess.run(
        command, cwd=PROJECT, capture_output=True, text=True, check=False, env={**os.environ, "TZ": zone}
    )
    assert ended.stdout == "[0.0, 120.0, 180.0]\n", ended.stderr


def test_traces_have_the_columns_of_public_ones(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:48.5,374,44\n2023-11-16 18:15:46.25,39,12\n"
    )
    assert [(one.arrival_s, one.input_tokens, one.output_tokens) for one in read(path)] == [
        (0, 39, 12),
        (2.25, 374, 44),
    ]
    path.write_text("time,input,output\n3,5,7\n1e1,6,8\n")
    assert [(one.arrival_s, one.input_tokens, one.output_tokens) for one in read(path)] == [(0, 5, 7), (7, 6, 8)]


@pytest.mark.parametrize(
    "text,sentence",
    [
        ("time,input\n1,2\n", "has no column of the output tokens; allowed: one called output, output_tokens"),
        ("time,input,output\n", "has no requests; allowed: a line for each"),
        ("time,input,output\n1,2,3\nsoon,2,3\n", 'line 3: "soon" is not a time; allowed: seconds, or a date'),
        ("time,input,output\n1,-2,3\n", 'line 2: "-2" is not a number of tokens; allowed: 1 to 999,999,999'),
        ("time,input,output\n1,2\n", 'line 2: "" is not a number of tokens'),
        ("time,input,output\nnan,2,3\n", 'line 2: "nan" is not a time'),
        (
            "time,input,output\n1e300,2,3\n",
            'line 2: "1e300" is not a time; allowed: seconds, or a date and time in ISO 8601; at most 1,000,',
        ),
        (f"time,input,output\n1,{'1' * 5000},3\n", "is not a number of tokens; allowed: 1 to 999,999,999"),
        (f"time,input,output\n1,{'1' * 200_000},3\n", "line 2 is not CSV: field larger than field limit"),
        ("time,Time,input,output\n1,2,3,4\n", "has 2 columns called time; allowed: one"),
        ("time,input,output\n1,2,3\n2023-11-16,2,3\n", 'line 3: "2023-11-16" is not a time of the lines above'),
    ],
)
def test_a_wrong_trace_is_told_with_its_line(text: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(ValueError) as error:
        read(path)
    assert sentence in str(error.value)


def test_what_cannot_be_measured_in_time_is_told_before_a_vm_starts(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("time,input,output\n0,10,10\n1200,15,10\n")
    chosen = ["--trace", str(path), "--rules", "remote", "--engine", "both", "--measured"]
    ended = requests(*chosen, "2")
    sentence = "--measured: the last of 2 requests' caches is there after 1,200 s; allowed: up to 900 s"
    assert ended.returncode == 2 and sentence in ended.stderr, ended.stderr


def test_measured_times_that_are_not_the_predicted_ones_are_told() -> None:
    line = Line(
        rule="remote",
        wan_bps=10e9,
        remote=1.0,
        p50_s=1.0,
        p90_s=1.0,
        p99_s=1.0,
        served_per_s=1.0,
        busiest="",
        load=None,
        measured=3,
        error_median=0.0,
        error_most=-0.04,
        draws_s=(1.0,),
    )
    (told,) = _warnings([line, replace(line, error_most=1.5), replace(line, error_most=None)])
    assert told.startswith("WARNING: remote at 10 Gbit/s: measured times to first token are up to +150 % from")


@pytest.mark.parametrize(("wan_bps", "token_bytes"), [(5e9, 20e3), (200e9, 160e3)])
def test_first_tokens_are_those_of_caches_that_crossed_the_testbed_s_wan(wan_bps: float, token_bytes: float) -> None:
    """Caches share the WAN: without sharing, those under way together would be there at other times. The faster WAN
    holds 500 MB in a round trip, more than the buffers of senders would grow to by Linux's calculation."""
    serving = Serving(
        local_servers=2,
        remote_servers=4,
        local_token_s=80e-6,
        remote_token_s=40e-6,
        cache_bytes=token_bytes,
        wan_bps=wan_bps,
        wan_delay_s=0.01,
        slots=64,
        token_s=0.02,
    )
    requests = poisson(24, per_s=8, input_tokens=4000, output_tokens=20, seed=2)
    prefilled = prefill(requests, serving, RULES["remote"])
    predicted = served(requests, serving, prefilled)
    measured = served(requests, serving, prefilled, arrivals_s(requests, serving, prefilled, seed=1))
    assert measured.first_token_s == pytest.approx(predicted.first_token_s, rel=0.01)
    alone = [0.01 + request.input_tokens * token_bytes * 8 / wan_bps for request in requests]
    took = (
        measured.first_token_s
        - 0.02
        - [done - one.arrival_s for done, one in zip(prefilled.done_s, requests, strict=True)]
    )
    assert max(took / alone) > 1.2


def test_more_caches_at_once_than_a_rank_has_threads_by_default_share_the_wan() -> None:
    """All but at once: each cache gets its share, to within two segments of 64 kB of each other one."""
    serving = Serving(
        local_servers=1,
        remote_servers=120,
        local_token_s=80e-6,
        remote_token_s=40e-6,
        cache_bytes=20e3,
        wan_bps=10e9,
        wan_delay_s=0.01,
        slots=120,
        token_s=0.02,
    )
    requests = poisson(120, per_s=5000, input_tokens=400, output_tokens=1, seed=3)
    prefilled = prefill(requests, serving, RULES["remote"])
    predicted = served(requests, serving, prefilled)
    measured = served(requests, serving, prefilled, arrivals_s(requests, serving, prefilled, seed=1))
    off_s = np.abs(measured.first_token_s - predicted.first_token_s)
    assert (off_s <= 0.01 * predicted.first_token_s + 2 * 120 * 2**16 * 8 / serving.wan_bps).all()
    assert np.median(off_s / predicted.first_token_s) < 0.01


def test_sentences_tell_from_which_rate_on_a_rule_is_ahead() -> None:
    """At 2 and 5 Gbit/s the WAN carries less than the caches of all requests, and at 25 all are soon there."""
    options = (
        "--rules",
        "local,remote",
        "-n",
        "5000",
        "--draws",
        "1",
        "--wan-rates",
        "2 Gbit/s,5 Gbit/s,25 Gbit/s,100 Gbit/s",
    )
    lines = json.loads(requests(*options, "--json").stdout)
    ahead = [
        remote["wan_bps"] / 1e9
        for local, remote in zip(lines[::2], lines[1::2], strict=True)
        if remote["p99_s"] < local["p99_s"]
    ]
    assert ahead == [25, 100]
    said = requests(*options).stdout
    assert "remote is ahead of local from 25 Gbit/s on." in said
    turned = requests(*options, "--rules", "remote,local").stdout
    assert "local is ahead of remote at 2, 5 Gbit/s only." in turned
    assert "ahead of" not in requests("--rules", "local,remote").stdout  # at one rate


def test_several_rates_of_arrival_are_those_of_runs_with_each(tmp_path: Path) -> None:
    """With one rule of four servers, 80 us a token and 8,000 tokens, 6.25 requests/s are all that is served."""
    options = ("--rules", "local,selective", "-n", "2000", "--draws", "2", "--wan-delay", "30 ms")
    said = requests(*options, "--per-second", "5,1,12", "--figure", str(tmp_path / "shown"))
    assert said.returncode == 0, said.stderr
    found = json.loads((tmp_path / "shown.json").read_text())
    assert [line["per_s"] for line in found] == [5, 5, 1, 1, 12, 12]
    for at, per_s in enumerate((5, 1, 12)):
        alone = json.loads(requests(*options, "--per-second", str(per_s), "--json").stdout)
        assert [one | {"parameters": None} for one in alone] == [
            one | {"parameters": None} for one in found[2 * at : 2 * at + 2]
        ]
        assert alone[0]["parameters"]["arrivals"] == f"{per_s} a second"
        assert alone[0]["parameters"]["wan_delay"] == "WAN delay 30 ms"
    title, head = said.stdout.splitlines()[:2]
    assert "WAN delay 30 ms" in title and "WAN 10 Gbit/s" in title and "a second" not in title
    assert head.split("  ")[0] == "arrivals (requests/s)"
    assert "At 12 requests/s, 99 of 100" in said.stdout and "local at 12 requests/s (local servers)" in said.stdout
    assert "selective is ahead of local" in said.stdout and "Gbit/s on" not in said.stdout
    assert "arrivals (requests/s)" in (tmp_path / "shown.svg").read_text()


def test_percentiles_of_several_draws_have_intervals_and_those_of_one_say_so(tmp_path: Path) -> None:
    """The draws are those of as many seeds, run one by one; Student's interval of their gains is close to the told
    one, which also allows for skewness."""
    options = ("--rules", "local,selective", "-n", "2000", "--wan-rates", "10 Gbit/s")
    found = json.loads(requests(*options, "--json", "--draws", "6").stdout)
    alone = [
        json.loads(requests(*options, "--json", "--draws", "1", "--seed", str(seed)).stdout) for seed in range(1, 7)
    ]
    for at, line in enumerate(found):
        assert line["draws_s"] == [one[at]["p99_s"] for one in alone] and line["p99_s"] == line["draws_s"][0]
    gains = 1 - np.array(found[1]["draws_s"]) / np.array(found[0]["draws_s"])
    said = requests(*options, "--draws", "6").stdout
    told = re.search(r"over 6 draws of requests ([0-9.]+) % below it .95 % interval ([0-9.]+) to ([0-9.]+) %.", said)
    assert told is not None, said
    mean, low, high = map(float, told.groups())
    assert mean == pytest.approx(100 * gains.mean(), abs=0.051)
    students = stats.t.interval(0.95, 5, loc=gains.mean(), scale=stats.sem(gains))
    assert (low, high) == pytest.approx([100 * end for end in students], abs=0.5 * (high - low))
    assert "without intervals" not in said
    (tmp_path / "trace.csv").write_text("time,input,output\n0,100,5\n1,900,6\n2,400,7\n")
    assert (
        "percentiles of one sample of 3 requests, without intervals"
        in requests("--rules", "local,selective", "--trace", str(tmp_path / "trace.csv")).stdout
    )
