"""Jobs of requests to a language model: their messages, their times in both engines, and what is told of them."""

import csv
import json
import re

import numpy as np
import pytest

from analysis.model.serving import poisson
from analysis.results.reader import load, load_jobs
from hosts.collectives.schedule import Flow
from scenarios.engines.prediction import plan_of
from scenarios.spec import ScenarioError
from scenarios.spec.load import Override, load_scenario, resolved, scenario_of
from tests.fakes.runs import ended

CHAT = {
    **{"name": "chat", "kind": "requests", "ranks": [2, 3, 6, 7], "requests": 20, "per_second": 100, "input": 400},
    **{"cache": "20 kB", "local_token": "80 us", "remote_token": "40 us", "rule": "remote"},
}
DECODING = {"order": "3 ms", "token": "5 ms", "percentile": 50, "slots": 4, "output": 7}
SUM = {"name": "sum", "ranks": [0, 1, 4, 5], "kind": "allreduce", "size": "100 MB"}
CONSTANT = {"conditions.wan_rate": "10 Gbit/s", "conditions.intra_rate": "100 Gbit/s", "conditions.wan_delay": "10 ms"}


def setting(*jobs, count=3, **values):
    given = CONSTANT | {"collective.count": count} | {key.replace("__", "."): value for key, value in values.items()}
    overrides = [Override("job", list(jobs), "job"), *(Override(key, value, key) for key, value in given.items())]
    (found,) = load_scenario("paper", overrides).configurations()
    return found


def drawn(config, number=0, place=0):
    """Return the requests of a round, which are drawn from the run's seed, the job's place and the round's number."""
    job = config.jobs[place]
    seed = [config.run.seed, place, number]
    return poisson(job.requests, per_s=job.per_second, input_tokens=job.input_tokens, output_tokens=1, seed=seed)


def served_in_order(requests, servers, token_s, order_s=0.0):
    """Return the server of each request, and when it is done: each goes to the server that is free first, `order_s`
    after its arrival at the earliest."""
    free_s, found = [0.0] * servers, []
    for request in requests:
        server = min(range(servers), key=lambda one: (free_s[one], one))
        free_s[server] = max(free_s[server], request.arrival_s + order_s) + request.input_tokens * token_s
        found.append((server, free_s[server]))
    return found


def test_a_job_of_requests_survives_reading_and_writing():
    found = load_scenario("paper", [Override("job", [CHAT | DECODING], "job")])
    (job,) = found.jobs
    assert scenario_of(resolved(found)) == found and (job.percentile, job.slots, job.output_tokens) == (50, 4, 7)


@pytest.mark.parametrize("order", [{}, {"order": "25 ms"}])
def test_caches_are_sent_when_the_servers_of_the_other_site_have_made_them_and_each_round_has_other_ones(order):
    config, order_s = setting(CHAT | order), 0.025 * bool(order)
    for number in (0, 1):
        workload, requests = config.of_round(number).workload, drawn(config, number)
        schedule, done_s, sent = workload.schedule, {}, []
        for transfer in schedule.transfers:  # a computation of each place tells the time
            flow = schedule.flows[transfer.flow]
            if isinstance(flow, Flow):
                sent.append((done_s[flow.src], flow.src, transfer.size))
            else:
                done_s[flow.place] = done_s.get(flow.place, 0.0) + transfer.size
        expected = [
            (done, (6, 7)[server], request.input_tokens * 20_000)
            for request, (server, done) in zip(requests, served_in_order(requests, 2, 40e-6, order_s), strict=True)
        ]
        assert sorted(place for _, place, _ in sent) == sorted(place for _, place, _ in expected)
        for found, wanted in zip(sorted(sent), sorted(expected), strict=True):
            assert found == (pytest.approx(wanted[0], abs=2e-9), *wanted[1:])
        # The GPUs of the first rank's site decode in turn.
        assert {flow.dst for flow in schedule.flows if isinstance(flow, Flow)} == {2, 3}
    flows = [config.of_round(number).workload.schedule.flows for number in (0, 1)]
    assert flows[0] == flows[1]


def test_the_time_of_one_request_is_its_prefill_its_cache_s_way_and_a_token():
    config = setting(CHAT | {"requests": 1, "start": "1 ms", "cache": "2 MB"}, count=4)
    _, times = plan_of(config, "base").with_jobs()
    for number in range(4):
        (request,) = drawn(config, number)
        ways_s = 0.01 + 2 * 0.7e-6  # the WAN's delay, and that of the links at its ends in this scenario
        alone_s = request.input_tokens * (40e-6 + 2e6 * 8 / 10e9) + ways_s + 0.02
        assert times.completion_s[number, 0] == pytest.approx(alone_s, rel=1e-4)


@pytest.mark.parametrize("percentile", [50, 99])
def test_requests_that_are_prefilled_where_they_are_decoded_do_not_depend_on_the_network(percentile):
    config = setting(CHAT | {"rule": "local", "percentile": percentile, "requests": 50}, {"ranks": [2, 3, 6, 7]})
    _, times = plan_of(config, "base").with_jobs()
    for number in range(3):
        requests = drawn(config, number)
        done = served_in_order(requests, 2, 80e-6)
        waits_s = [done_s - request.arrival_s for request, (_, done_s) in zip(requests, done, strict=True)]
        assert times.completion_s[number, 0] == pytest.approx(np.percentile(waits_s, percentile) + 0.02, rel=1e-9)


def decoded(there_s, tokens, slots, token_s):
    """Return when requests begin and end to be decoded: each, in the order in which caches are there, at the first
    instant at which fewer than `slots` of those before it are decoded."""
    spans = {}
    for one in sorted(range(len(there_s)), key=lambda each: there_s[each]):
        instants = sorted({there_s[one], *(end for _, end in spans.values() if end > there_s[one])})
        begin = next(at for at in instants if sum(since <= at < end for since, end in spans.values()) < slots)
        spans[one] = (begin, begin + tokens[one] * token_s)
    return np.array([spans[one] for one in range(len(there_s))]).T


@pytest.mark.parametrize("slots", [1, 3, 40])
def test_first_tokens_wait_for_a_slot_that_decodes(slots, tmp_path):
    """Times and throughput of a trace, of which all requests are prefilled in the first site, so that all is known."""
    draws = np.random.default_rng(slots)
    arrivals = np.round(draws.exponential(0.01, 40).cumsum(), 6)
    tokens = draws.integers(1, 30, (40, 2))
    rows = [f"{at:.6f},{given},{asked}" for at, (given, asked) in zip(arrivals, tokens, strict=True)]
    path = tmp_path / "trace.csv"
    path.write_text("\n".join(["time,input,output", *rows]))
    own = {"trace": str(path), "requests": 40, "rule": "local", "local_token": "500 us", "token": "2 ms"}
    job = {key: value for key, value in CHAT.items() if key not in ("per_second", "input")} | own | {"slots": slots}
    arrives = arrivals - arrivals[0]
    free, there = [0.0, 0.0], []
    for at, given in zip(arrives, tokens[:, 0], strict=True):
        server = free.index(min(free))
        free[server] = max(free[server], at) + given * 500e-6
        there.append(free[server])
    begin, end = decoded(there, tokens[:, 1], slots, 2e-3)
    for percentile in (50, 99):
        _, times = plan_of(setting(job | {"percentile": percentile}, count=1), "base").with_jobs()
        assert times.completion_s[0, 0] == pytest.approx(np.percentile(begin - arrives + 2e-3, percentile), rel=1e-9)
    assert times.first_token_p50_s[0, 0] == pytest.approx(np.median(begin - arrives + 2e-3), rel=1e-9)
    assert times.requests_per_s[0, 0] == pytest.approx(40 / end.max(), rel=1e-9)
    _, unlimited = plan_of(setting({key: job[key] for key in job if key != "slots"}, count=1), "base").with_jobs()
    assert (times.completion_s[0, 0] > unlimited.completion_s[0, 0] + 1e-9) == (slots < 40)


def test_requests_are_told_in_the_table_of_jobs_and_other_jobs_have_no_such_numbers(tmp_path):
    path = tmp_path / "served.toml"
    path.write_text(resolved(setting(SUM, CHAT | {"slots": 2, "output": 5, "token": "1 ms"}, count=4)))
    shown, _ = ended(path, "--modes", "base", "--engine", "model", "--out", "run", "--no-report", cwd=tmp_path)
    jobs = load_jobs(tmp_path / "run")
    of_chat = jobs[jobs["job"] == "chat"].mean(numeric_only=True)
    assert 0 < of_chat.first_token_p50_s < of_chat.completion_s
    told = f"{of_chat.completion_s * 1e3:.3f} ms (median {of_chat.first_token_p50_s * 1e3:.3f} ms, "
    assert f"chat (percentile 99 of first tokens) {told}{of_chat.requests_per_s:.3g} requests a second)" in shown
    assert jobs[jobs["job"] == "sum"]["requests_per_s"].isna().all()
    with (tmp_path / "run" / "summary.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert float(row["job.chat.mean_requests_per_s"]) == pytest.approx(of_chat.requests_per_s)
    assert float(row["job.chat.mean_first_token_p50_s"]) == pytest.approx(of_chat.first_token_p50_s)
    assert not any(name.startswith("job.sum.mean_requests") for name in row)


def test_a_selective_rule_sends_less_the_slower_it_expects_the_wan_to_be():
    def caches(rate, **more):
        job = CHAT | {"rule": "selective", "rate": rate, "requests": 100} | more
        return sum(isinstance(flow, Flow) for flow in sends(setting(job).workload))

    assert 0 < caches("1 Gbit/s") < caches("10 Gbit/s") < caches("1000 Gbit/s") < 100
    assert caches("10 Gbit/s", order="20 ms") < caches("10 Gbit/s", order="1 ms")


def test_rounds_have_the_next_requests_of_a_trace_which_begins_again_after_its_last_whole_round(tmp_path):
    tokens = (10, 20, 30, 40, 50)
    lines = [f"{second},{count},9" for second, count in enumerate(tokens)]
    path = tmp_path / "trace.csv"
    path.write_text("\n".join(["time,input,output", *lines]))
    job = {key: value for key, value in CHAT.items() if key not in ("per_second", "input")}
    config = setting(job | {"trace": str(path), "requests": 2})
    for number, first in enumerate((0, 2, 0, 2)):
        schedule = config.of_round(number).workload.schedule
        sizes = [one.size for one in schedule.transfers if one.after]
        assert sizes == [20_000 * count for count in tokens[first : first + 2]]
        seconds = [one.size for one in schedule.transfers if not one.after]
        assert seconds == pytest.approx([tokens[first] * 40e-6, 1 + tokens[first + 1] * 40e-6])
    with pytest.raises(ScenarioError, match=r"job\[1\]: chat: requests: 6; allowed: up to 5, which the trace has"):
        setting(job | {"trace": str(path), "requests": 6})
    with pytest.raises(ScenarioError, match=r"job\[1\]: chat: trace: .*none.csv cannot be read: No such file"):
        setting(job | {"trace": str(tmp_path / "none.csv")})


def test_a_rule_of_one_s_own_decides_and_what_it_does_wrong_is_told(tmp_path):
    (tmp_path / "rules.py").write_text(
        "def long_ones(offer):\n    return offer.input_tokens > 400\n\ndef wrong(offer):\n    return 'remote'\n"
    )
    own = CHAT | {"requests": 200, "rate": "10 Gbit/s"}
    config = setting(own | {"rule": f"{tmp_path / 'rules.py'}:long_ones"})
    sizes = [one.size for one in config.workload.schedule.transfers if one.after]
    assert sorted(sizes) == sorted(20_000 * one.input_tokens for one in drawn(config) if one.input_tokens > 400)
    with pytest.raises(
        ScenarioError, match=r'job\[1\]: chat: rule: "rules.py:wrong" returned "remote"; allowed: True for'
    ):
        setting(own | {"rule": f"{tmp_path / 'rules.py'}:wrong"})
    path = tmp_path / "relative.toml"
    path.write_text(resolved(config).replace(f"{tmp_path}/", ""))
    assert load_scenario(str(path), []).jobs == config.jobs


def sends(workload):
    return [workload.schedule.flows[one.flow] for one in workload.schedule.transfers if one.after]


@pytest.mark.parametrize(
    ("keys", "place", "words"),
    [
        ({"ranks": [2, 3]}, "", "chat: requests are served by the GPUs of one site; allowed: ranks of two sites"),
        ({"rule": "selective"}, ".rate", "is missing; allowed: text with a unit"),
        ({"rule": "nearest"}, ".rule", '"nearest" is not known; allowed: local, remote, selective, or FILE:NAME'),
        ({"slots": 0}, ".slots", "0 is too small; allowed: a whole number from 1 to 10,000"),
        ({"output": 0}, ".output", "0 is too small; allowed: a whole number from 1"),
        ({"requests": 0}, ".requests", "0 is too small; allowed: a whole number from 1"),
        ({"requests": None}, ".requests", "is missing; allowed: a whole number from 1 to 10,000"),
        ({"percentile": 101}, ".percentile", "101 is too large; allowed: a number from 1 to 100"),
    ],
)
def test_what_is_wrong_with_a_job_of_requests_is_told_with_its_key(keys, place, words):
    job = {key: value for key, value in (CHAT | keys).items() if value is not None}
    with pytest.raises(ScenarioError) as refusal:
        load_scenario("paper", [Override("job", [job], "job")])
    (line,) = refusal.value.mistakes
    assert re.match(rf"job\[1\]{re.escape(place)}: {re.escape(words)}", line), line


def test_paths_of_every_round_are_chosen_as_the_model_chooses_them(tmp_path):
    """By one message for all rounds, though each has others: else a run ends with a path that was not planned."""
    policy = {"name": "mine", "reroute": "every", "reembed": "every 2", "knowledge": "probed"}
    given = {"conditions.wan_rate": "10-100 Gbit/s", "conditions.intra_rate": "20-200 Gbit/s", "policy": [policy]}
    path = tmp_path / "probed.toml"
    values = CONSTANT | given | {"conditions.wan_delay": "2 ms", "collective.count": 3, "run.modes": ["mine"]}
    jobs = Override("job", [SUM | {"size": "20 MB"}, CHAT], "job")
    path.write_text(resolved(load_scenario("paper", [jobs, *(Override(key, one, key) for key, one in values.items())])))
    out, _ = ended(path, "--json", "--out", "run", "--no-report", cwd=tmp_path)
    fidelity = json.loads(out)["fidelity"]
    assert fidelity["collectives"] == 3 and fidelity["p99_abs_error"] < 1e-3


def test_rounds_that_send_no_cache_are_measured_like_others(tmp_path):
    """Alone in its scenario: a round then waits for the prefills of the first site, and has the flows of all others."""
    few = CHAT | {"requests": 4, "rule": "selective", "rate": "3 Gbit/s"}
    config = setting(few, count=6)
    rounds = [config.of_round(number).workload for number in range(6)]
    assert {bool(sends(one)) for one in rounds} == {True, False}
    assert len({one.schedule.flows for one in rounds}) == 1
    path = tmp_path / "few.toml"
    path.write_text(resolved(config))
    out, _ = ended(
        path, "--modes", "base,wan", "--json", "--out", "run", "--set", "collective.emulated=6", cwd=tmp_path
    )
    fidelity = json.loads(out)["fidelity"]
    assert fidelity["collectives"] == 12 and fidelity["p99_abs_error"] < 1e-3
    rows = load(tmp_path / "run")
    for number in (number for number, one in enumerate(rounds) if not sends(one)):
        requests = drawn(config, number)
        done = max(done_s for _, done_s in served_in_order(requests, 2, 80e-6))
        assert rows[rows["collective"] == number]["completion_s"].to_numpy() == pytest.approx([done] * 4, rel=1e-6)


def test_requests_beside_a_collective_take_the_predicted_times_and_the_same_nanoseconds_in_every_boot(tmp_path):
    path = tmp_path / "both.toml"
    path.write_text(resolved(setting(SUM, CHAT | {"slots": 3, "output": 4})))
    runs = []
    for name in ("one", "two"):
        out, _ = ended(path, "--modes", "base", "--json", "--out", name, "--no-report", cwd=tmp_path)
        runs.append(json.loads(out)["points"])
    model, measured = ({job["name"]: job for job in point["jobs"]} for point in runs[0])
    for name in ("sum", "chat"):
        assert measured[name]["mean_s"] == pytest.approx(model[name]["mean_s"], rel=1e-3)
    for number in ("mean_first_token_p50_s", "mean_requests_per_s"):
        assert measured["chat"][number] == pytest.approx(model["chat"][number], rel=1e-3)
    assert [point["jobs"] for point in runs[0]] == [point["jobs"] for point in runs[1]]
    # A collective beside the caches takes longer than alone.
    alone = setting(SUM)
    assert measured["sum"]["mean_s"] > 1.2 * float(plan_of(alone, "base").with_jobs()[0].mean())
