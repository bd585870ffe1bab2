"""Transfers: which requests are admitted, deferred or refused, and that those to be sent arrive in time."""

import json
import random
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.results import open_run
from scenarios.engines.prediction import Plan, decisions_of
from scenarios.engines.timing import job_times
from scenarios.experiment import command
from scenarios.policies.conditions import conditions_of
from scenarios.spec import ScenarioError, failover
from scenarios.spec.admission import BROKEN
from scenarios.spec.faults import Fault
from scenarios.spec.load import resolved, scenario_of
from tests.conftest import PROJECT
from tests.fakes.runs import answer, assert_recorded, ended
from tests.guest import mixes
from topologies.fabric.fabric import build_fabric

RUN = str(PROJECT / "scenarios" / "run.py")

HEAD = """
[fabric]
routing = "spray"
gpus = 8
[conditions]
wan_rate = "1-4 Gbit/s"
intra_rate = "2 Gbit/s"
[collective]
count = 1
emulated = 1
[run]
modes = ["base"]
"""
COPY = {"kind": "transfer", "name": "copy", "ranks": [0, 4], "size": "4 MB", "deadline": "20 ms"}
STREAM = {"kind": "transfer", "name": "stream", "ranks": [1, 5], "rate": "800 Mbit/s", "duration": "10 ms"}


CLASSES = '[[class]]\nname = "a"\npriority = 0\n[[class]]\nname = "b"\npriority = 1\nshare = 0.2\n'


def setting(*jobs, head=HEAD, tail=""):
    (found,) = scenario_of(text(*jobs, head=head, tail=tail)).configurations()
    return found


def text(*jobs, head=HEAD, tail=""):
    tables = ["[[job]]\n" + "\n".join(f"{key} = {json.dumps(value)}" for key, value in job.items()) for job in jobs]
    return "\n".join([head, *tables, tail])


def ends_s(found, mode="base"):
    """Return when each job ends by the model, in seconds after the beginning of the round, by the name of the job."""
    conditions = conditions_of(found)  # with the faults of the scenario
    decisions = decisions_of(found, mode, conditions, start=0, count=1)
    arrives_s = Plan(found, mode, decisions, conditions).times().arrives_s
    spans = found.workload.jobs
    (times_s,) = job_times(spans, arrives_s).completion_s
    return {one.name: one.start_s + took for one, took in zip(spans, times_s, strict=True)}


def random_requests(seed):
    """Return two to six random transfer requests over a mesh, some of which ask for more than the WAN can carry."""
    draw = random.Random(seed)
    jobs = []
    for number in range(draw.randint(2, 6)):
        start = draw.choice([0.0, draw.uniform(1, 50)])
        for_ms = draw.uniform(40, 120)
        job = {"kind": "transfer", "name": f"t{number}", "ranks": [draw.randrange(4), draw.randrange(4, 8)]}
        job |= {"start": f"{start:.3f} ms"} if start else {}
        if draw.random() < 0.4:
            job |= {"rate": f"{draw.uniform(0.1, 2):.3f} Gbit/s", "duration": f"{for_ms:.3f} ms"}
        else:
            job |= {"size": f"{draw.uniform(1, 20):.3f} MB", "deadline": f"{start + for_ms:.3f} ms"}
        jobs.append(job | ({"latest": f"{start + 4 * for_ms:.3f} ms"} if draw.random() < 0.4 else {}))
    return jobs


@pytest.mark.parametrize("grain", ["logical", "physical"])
def test_admitted_and_deferred_transfers_of_random_mixes_arrive_in_time(grain):
    outcomes = set()
    for seed in range(5):
        found = setting(*random_requests(seed), head=HEAD.replace("gpus = 8", f'gpus = 8\ngrain = "{grain}"'))
        at_s = ends_s(found)
        for one in found.transfers:
            outcomes.add(one.outcome)
            assert (one.job.name in at_s) == (one.workload is not None)
            assert one.workload is None or at_s[one.job.name] <= one.due_s
    assert outcomes == {"admitted", "deferred", "refused"}


def test_protected_transfers_arrive_in_time_whichever_wan_link_is_down():
    requests = [
        COPY | {"size": "6 MB", "deadline": "40 ms"},
        STREAM | {"rate": "1.5 Gbit/s", "start": "5 ms"},
        COPY | {"name": "big", "ranks": [2, 6], "size": "40 MB"},
    ]
    found = setting(*requests, tail='[admission]\nprotect = "link"')
    outcomes = [one.outcome for one in found.transfers]
    assert outcomes == ["admitted", "admitted", "refused"]
    for a, b in build_fabric(found.fabric).wan.links:
        down = replace(found, faults=(Fault(collective=0, kind="link down", target=f"{a}-{b}"),))
        assert [one.outcome for one in down.transfers] == outcomes
        at_s = ends_s(down)
        assert all(at_s[one.job.name] <= one.due_s for one in down.transfers if one.workload is not None)


def test_a_recovery_time_is_kept_free_before_deadlines_and_a_fault_changes_no_schedule():
    requests = COPY | {"size": "6 MB", "deadline": "340 ms"}, STREAM | {"rate": "1 Gbit/s", "start": "5 ms"}
    tail = '[admission]\nprotect = "link"\nrecovery = "300 ms"\n'
    found = setting(*requests, tail=tail)
    at_s = ends_s(found)
    assert all(one.outcome == "admitted" and at_s[one.job.name] <= one.due_s - 0.3 for one in found.transfers)
    with pytest.raises(ScenarioError, match="copy is refused: nothing by 20 ms"):  # sooner than the recovery time
        setting(COPY, tail=tail)
    fault = '[[fault]]\nat = "{}collective 0"\nwhat = "link s0b0-s1b0 down"\n{}'
    sent = found.workload.schedule
    for when, lasts in (("", ""), ("3 ms into ", ""), ("", 'for = "2 collectives"')):
        struck = setting(*requests, tail=tail + fault.format(when, lasts))
        schedule = struck.workload.schedule
        assert (schedule.flows, schedule.transfers) == (sent.flows, sent.transfers)
        assert [one.due_s for one in struck.transfers] == [one.due_s for one in found.transfers]


def recovery_of(delay_ms, wan, recovery_s):
    """Return a scenario with one transfer, protected with this recovery, whose WAN links have this delay."""
    head = HEAD.replace("gpus = 8", f'gpus = 8\nwan = "{wan}"')
    head = head.replace("[collective]", f'wan_delay = "{delay_ms:.3f} ms"\n[collective]')
    asked = COPY | {"deadline": f"{recovery_s + 10:.3f} s"}
    return setting(asked, head=head, tail=f'[admission]\nprotect = "link"\nrecovery = "{recovery_s:.3f} s"\n')


@given(delay_ms=st.floats(1, 200), wan=st.sampled_from(["mesh", "five-router"]))
@settings(max_examples=10, deadline=None)
def test_a_recovery_below_what_tcp_needs_is_refused_with_the_least_that_is_allowed(delay_ms, wan):
    """A closed form bounds it from below: a round trip until the last acknowledgement, the first timeout of RFC 6298
    (a round trip, and twice a round trip or 200 ms), and three round trips to send a lost message of ten packets."""
    trip_s = 2 * (1 if wan == "mesh" else 4) * delay_ms / 1e3
    with pytest.raises(ScenarioError, match="is less than TCP may need on the paths of copy if a link fails") as caught:
        recovery_of(delay_ms, wan, 0.2)
    named = re.search(r"allowed: ([0-9.]+) (m?s) or more", str(caught.value))
    least_s = float(named[1]) / (1 if named[2] == "s" else 1000)
    assert least_s > 2 * trip_s + max(0.2, 2 * trip_s) + 3 * trip_s
    assert recovery_of(delay_ms, wan, least_s).transfers[0].outcome == "admitted"
    with pytest.raises(ScenarioError, match="is less than TCP may need"):
        recovery_of(delay_ms, wan, least_s - 0.011)


@given(
    before_s=st.floats(1e-4, 0.5),
    longer=st.floats(1, 2),
    outage_s=st.floats(1e-3, 1),
    rto_min_s=st.floats(1e-3, 1),
    packets=st.integers(1, 5000),
    most=st.integers(1, 7),
)
def test_a_connection_whose_tail_is_lost_is_never_further_behind_than_recovery_allows_for(
    before_s, longer, outage_s, rto_min_s, packets, most
):
    """A replay, acknowledgement by acknowledgement: the last one arrives a round trip after the failure and starts the
    timer, which doubles as long as the link is dead; then every acknowledgement, of two packets or of a segment, lets
    the sender send what it acknowledges and one packet more."""
    after_s, timer_s, now_s = before_s * longer, before_s + max(rto_min_s, 2 * before_s), before_s
    while True:
        now_s += timer_s
        if now_s > outage_s:
            break
        timer_s *= 2
    arriving, sent = [(now_s + after_s, 1)], 1  # acknowledgements: when, and of how many packets
    while sent < packets:
        now_s, acknowledged = arriving.pop(0)
        allowed = min(acknowledged + 1, packets - sent)
        sent += allowed
        while allowed > 0:
            arriving.append((now_s + after_s, min(allowed, max(2, most))))
            allowed -= max(2, most)
    bound_s = failover.behind_s(
        before_s=before_s, after_s=after_s, outage_s=outage_s, rto_min_s=rto_min_s, packets=packets, per_segment=most
    )
    assert now_s <= bound_s


@pytest.mark.parametrize(("timer_s", "took_s"), [(1, 1.055), (2, 2.05), (4, 4.035), (8, 8.257), (16, 16.387)])
def test_timers_end_no_later_than_recovery_allows_for(timer_s, took_s):
    """The VM's kernel took so long for timers of TCP that were due after so long (retransmissions of SYN)."""
    assert took_s <= failover.timeout_s(timer_s / 3, rto_min_s=0.2) <= timer_s * 9 / 8 + 2e-3


def test_promises_hold_with_the_least_recovery_wherever_in_its_tail_a_link_fails(vm):
    """At 150 ms with the link of the only tunnel; over transit routers with a link that packets are still on the way
    to. TCP takes more than the 300 ms that are enough at short delays."""
    for arguments in (("150 ms", "mesh", "s0b1-s1b0", "1,4"), ("20 ms", "five-router", "R0-R4", "3,10")):
        found = vm.report("failing", *arguments)
        assert max(found["struck_s"]) <= found["due_s"]
        assert max(found["struck_s"]) > max(found["there_s"]) + 0.9
        assert max(found["there_s"]) <= found["due_s"] - found["recovery_s"]


def test_a_link_failure_breaks_only_those_unprotected_transfers_that_no_longer_fit():
    asks = [STREAM | {"rate": "1.8 Gbit/s"}, STREAM | {"name": "second", "ranks": [2, 5], "rate": "100 Mbit/s"}]
    wan = '"five-router"'
    found = setting(*asks, head=HEAD.replace("gpus = 8", f"gpus = 8\nwan = {wan}").replace("1-4 Gbit/s", "1 Gbit/s"))
    down = replace(found, faults=(Fault(collective=0, kind="link down", target="R1-R2"),))
    assert [one.outcome for one in found.transfers] == ["admitted", "admitted"]
    first, second = down.transfers
    assert (first.outcome, second.outcome) == (BROKEN, "admitted")
    assert first.most == pytest.approx(0.95e9, rel=1e-6) and "broken: 950 Mbit/s at most" in first.sentence
    assert ends_s(down)["second"] <= second.due_s


def test_a_promise_that_holds_without_a_link_is_told_by_the_deadline_that_was_requested():
    """The calendar without the link has longer lags. They were added to ends that the old lags had shortened."""
    asks = [COPY | {"size": "400 MB", "deadline": "200 ms"}, COPY | {"name": "mine", "ranks": [1, 5], "size": "400 MB"}]
    asks[1]["deadline"] = "230 ms"
    wide = HEAD.replace("1-4 Gbit/s", "10 Gbit/s").replace("2 Gbit/s", "40 Gbit/s")
    found = setting(*asks, head=wide)
    down = replace(found, faults=(Fault(collective=0, kind="link down", target="s0b0-s1b0"),))
    for one in (found, down):
        assert [(each.outcome, each.due_s) for each in one.transfers] == [
            ("admitted", pytest.approx(0.2, abs=1e-12)),
            ("admitted", pytest.approx(0.23, abs=1e-12)),
        ]
    ends = ends_s(down)
    assert ends["copy"] <= 0.2 and ends["mine"] <= 0.23


@pytest.mark.parametrize(
    "policy", ['reroute = "every"\nreembed = "every 2"\nknowledge = "measured ends"', 'reroute = "gain 0.1"']
)
def test_a_mode_that_would_choose_paths_leaves_promised_transfers_their_tunnels(policy):
    found = setting(COPY, STREAM, tail=f'[[policy]]\nname = "mine"\n{policy}')
    assert found.modes["mine"].reroutes and not found.mode("mine").reroutes
    assert ends_s(found, "mine") == ends_s(found, "wan") == ends_s(found, "base")


def test_a_transfer_of_the_first_class_arrives_in_time_beside_a_large_alltoall():
    classes = '[[class]]\nname = "first"\npriority = 0\n[[class]]\nname = "rest"\npriority = 1\nshare = 0.1'
    noise = {"kind": "alltoall", "name": "noise", "ranks": [2, 3, 6, 7], "size": "40 MB"}
    asked = COPY | {"class": "first", "size": "8 MB", "deadline": "40 ms"}
    found = setting(asked, noise, tail=classes)
    (copy,) = found.transfers
    assert ends_s(found)["copy"] <= copy.due_s
    assert max(ends_s(found).values()) > copy.due_s  # the alltoall is still running when the transfer is due


@pytest.mark.parametrize("share", ["", "\nshare = 0.2"])
def test_without_a_class_of_their_own_transfers_get_one_and_are_in_time_beside_an_alltoall_of_their_gpus(share):
    """All share the links of 2 Gbit/s from GPU 0, too; the alltoall's class keeps a fifth of every shared link."""
    tail = f'[[class]]\nname = "transfers"\npriority = 0{share}'
    noise = {"kind": "alltoall", "name": "noise", "ranks": [0, 3, 4, 7], "size": "40 MB", "class": "transfers"}
    found = setting(COPY | {"size": "8 MB", "deadline": "44 ms"}, noise, tail=tail)
    assert [(one.name, one.priority) for one in found.classes] == [("transfers2", 0), ("transfers", 1)]
    (copy,) = found.transfers
    assert copy.outcome == "admitted" and ends_s(found)["copy"] <= copy.due_s
    assert max(ends_s(found).values()) > 1.5 * copy.due_s
    with pytest.raises(ScenarioError, match="served before transfers or together with them"):
        seven = "".join(f'[[class]]\nname = "c{number}"\npriority = {number}\n' for number in range(7))
        setting(COPY, *({"ranks": [1, 5], "class": f"c{number}"} for number in range(7)), tail=seven)


def test_transfers_beside_jobs_of_their_gpus_are_in_time_and_the_class_that_they_get_is_told(tmp_path):
    """The ring's single rounds may be off: the model knows no queues, which smooth what paced messages leave."""
    ring = {"name": "ring", "chunk": "8 MB", "ranks": [0, 1, 4, 5]}
    noise = {"name": "noise", "kind": "background", "pattern": "poisson", "rate": "4 Gbit/s", "duration": "10 ms"}
    copy = COPY | {"size": "36 MB", "deadline": "12 ms"}
    head = HEAD.replace("1-4 Gbit/s", "10-40 Gbit/s").replace("2 Gbit/s", "40 Gbit/s").replace("= 1\n", "= 3\n")
    (tmp_path / "mixed.toml").write_text(text(copy, ring, noise | {"ranks": [0, 4]}, head=head))
    arguments = ("--engine", "emulation", "--no-report", "--out", "run", "mixed.toml")
    out, said = ended(*arguments, cwd=tmp_path)
    assert "transfers have a class of their own, transfers (DSCP 8), which every link that they share" in said
    assert "copy is admitted: 36 MB by 12 ms; complete at 11." in out and "1 of 1 promise kept" in out
    jobs = open_run(tmp_path / "run").jobs.set_index(["job", "collective"]).sort_index()
    ratios = jobs.completion_s / jobs.predicted_s
    assert abs(ratios["copy"] - 1).max() < 0.005 and abs(ratios["ring"] - 1).max() < 0.03
    assert_recorded("transfers beside jobs of their GPUs", jobs.completion_s.to_list())


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        ('at = "37.5 ms into collective 1"\nwhat = "link s0b0-s1b0 down"', "due at 40.000 ms"),  # waits for TCP's timer
        ('at = "10 ms into collective 1"\nwhat = "agent 4 killed"', "missed in 1 that a fault ended"),
        (
            'at = "10 ms into collective 1"\nwhat = "agent 3 killed"',
            "; complete at 39.8",
        ),  # it neither sends nor receives
    ],
)
def test_promises_beside_a_fault_that_they_do_not_cover_are_told_to_be_kept_or_missed(fault, found, tmp_path):
    head = HEAD.replace("1-4 Gbit/s", "10-20 Gbit/s").replace("2 Gbit/s", "40 Gbit/s").replace("= 1\n", "= 2\n")
    head = head.replace("[conditions]", '[conditions]\nwan_delay = "1 ms"')
    (tmp_path / "struck.toml").write_text(
        text(COPY | {"size": "40 MB", "deadline": "40 ms"}, head=head, tail=f"[[fault]]\n{fault}\n")
    )
    out, said = ended("--engine", "emulation", "--no-report", "--out", "run", "struck.toml", cwd=tmp_path)
    what = fault.split('"')[3]
    assert f"transfers are promised without {what} at " in said
    (line,) = (line for line in out.splitlines() if "copy is admitted: 40 MB by 40 ms" in line)
    assert found in line
    assert ("1 of 1 promise kept" in out) == found.startswith("; complete")


def test_with_classes_a_transfer_is_due_later_by_one_segment_of_another_class():
    """The WAN port may first finish a segment of 64 kB of another class; a mesh path has one WAN link, >= 1 Gbit/s."""
    gold = '[[class]]\nname = "gold"\npriority = 0'
    asked = STREAM | {"duration": "5 ms"}
    (alone,), (beside,) = setting(asked).transfers, setting(asked | {"class": "gold"}, tail=gold).transfers
    assert beside.due_s - alone.due_s == pytest.approx(8 * 64_000 / 1e9, rel=1e-6)


def test_a_one_byte_transfer_beside_a_fast_transfer_arrives_in_time():
    byte = COPY | {"name": "byte", "size": "1 B", "deadline": "40 s"}
    found = setting(COPY, byte)
    assert [ends_s(found)[one.job.name] <= one.due_s for one in found.transfers] == [True, True]


def test_the_outcome_of_a_deferred_transfer_can_be_written_as_json():
    (found,) = setting({**COPY, "deadline": "2 ms", "latest": "60 ms"}).transfers
    assert found.outcome == "deferred"
    assert json.loads(json.dumps(found.as_json() | found.kept(1e-3)))["kept"] is True


def test_message_sizes_of_a_transfer_add_up_to_the_bytes_of_its_calendar():
    found = setting(*random_requests(1))
    for one in found.transfers:
        if one.workload is not None:
            sizes = [task.size for _, task in one.workload.schedule.sends()]
            bits = np.diff(one.edges_s) @ sum(one.rates_bps.values())
            assert 8 * sum(sizes) == pytest.approx(bits, abs=16)


def test_transfers_and_admission_survive_writing_and_reading_a_scenario():
    found = scenario_of(resolved(setting(COPY, STREAM | {"latest": "60 ms"}, tail='[admission]\nprotect = "link"')))
    assert found.jobs[1].latest_s == pytest.approx(0.06) and found.admission.protect == "link"
    assert found.jobs[0].deadline_s == pytest.approx(0.02)


def test_without_admission_the_urgent_transfer_is_late_and_figures_compare_both_ways(tmp_path, capsys):
    """Two transfers use one link of 1 Gbit/s. Sharing it, the urgent one (2 MB) takes the time of 4 MB and is late.
    With a calendar it goes first, and all 6 MB arrive before the deadline of the other one."""
    scenario, shares = tmp_path / "asks.toml", ("single", "ecmp", "te")
    copy = COPY | {"chunk": "1 MB"}
    jobs = copy | {"size": "2 MB", "deadline": "24 ms"}, copy | {"name": "later", "ranks": [1, 5], "deadline": "60 ms"}
    link = HEAD.replace("1-4 Gbit/s", "1 Gbit/s").replace("gpus = 8", "gpus = 8\nborder_routers = 1")
    scenario.write_text(resolved(setting(*jobs, head=link)).replace('routing = "spray"\n', ""))
    sweep = 'sweep.fabric.routing=["single", "ecmp", "te", "spray"]'
    arguments = [str(scenario), "--engine", "model", "--json", "--set", sweep, "--out", str(tmp_path / "run")]
    assert command.run(arguments) == 0
    points = json.loads(capsys.readouterr().out)["points"]
    assert [[one["outcome"] for one in point["transfers"]] for point in points] == [["sent"] * 2] * 3 + [
        ["admitted"] * 2
    ]
    drawn = pd.read_csv(tmp_path / "run" / "figures" / "scenario-deadlines.csv")
    for number, (copy, later) in enumerate(
        zip(drawn[drawn.job == "copy"].itertuples(), drawn[drawn.job == "later"].itertuples(), strict=True)
    ):
        assert (copy.in_time, later.in_time) == (number == len(shares), True)
        if number < len(shares):
            assert (copy.there_s, later.there_s) == pytest.approx((32e-3, 48e-3), rel=2e-3)
    calendar = pd.read_csv(tmp_path / "run" / "figures" / "scenario-calendar.csv")
    delivered_bps = calendar[calendar.what == "delivered"].groupby("from_s").bps.sum()
    assert 0.9e9 < delivered_bps.max() < 1.01e9  # the link's rate, though a message counts once it is whole
    sweeps = 'sweep.fabric.routing=["single", "spray"]', 'sweep.conditions.wan_delay=["10 us", "1 ms"]'
    arguments = [str(scenario), "--engine", "model", "--out", str(tmp_path / "both")]
    assert command.run([*arguments, *(word for sweep in sweeps for word in ("--set", sweep))]) == 0
    written = (tmp_path / "both" / "figures" / "scenario-deadlines.svg").read_text()
    for words in (">10 µs<", ">1 ms<"):  # one panel for each delay, which compares the routings
        assert written.count(words) == 1
    for words in (">single<", ">spray<", ">without admission<", ">with admission<"):
        assert written.count(words) == 2


def test_without_admission_transfers_use_the_paths_of_the_mode_and_any_fault_is_allowed():
    """The fixed path has the only slow WAN link, of 1 Gbit/s, over which 4 MB take 32 ms; the others have 2 Gbit/s."""
    slow = HEAD.replace('"spray"', '"single"').replace("1-4 Gbit/s", "2 Gbit/s")
    tail = '[conditions.links]\n"s0b0>s1b0" = { rate = "1 Gbit/s" }\n'
    fault = '[[fault]]\nat = "5 ms into collective 0"\nwhat = "link s0b0-s1b0 down"\n'
    found = setting(COPY, head=slow.replace('"base"', '"base", "wan"'), tail=tail + fault)
    (copy,) = found.transfers
    assert copy.outcome == "sent"
    undisturbed = replace(found, faults=())
    assert [ends_s(undisturbed, mode)["copy"] for mode in ("base", "wan")] == pytest.approx([32e-3, 16e-3], rel=0.01)


def test_transfers_that_are_not_admitted_share_links_with_a_ring_on_the_same_gpus_as_predicted(tmp_path):
    """Both modes may be compared, too: only tunnels exclude a mode that chooses paths."""
    head = HEAD.replace('"spray"', '"single"').replace('["base"]', '["base", "joint"]')
    found = setting({"name": "ring", "chunk": "1 MB"}, COPY | {"deadline": "90 ms"}, head=head)
    (tmp_path / "shared.toml").write_text(resolved(found))
    told = answer(tmp_path / "run", "shared.toml", "--engine", "both")
    assert told["fidelity"]["drops"] == 0 and told["fidelity"]["p99_abs_error"] < 0.005
    for point in told["points"]:
        (copy,) = point["transfers"]
        assert (copy["outcome"], copy["kept"]) == ("sent", True)


@pytest.mark.parametrize(
    ("jobs", "head", "says"),
    [
        ([COPY | {"ranks": [0, 1]}], HEAD, "ranks: ranks 0 and 1 are in one site"),
        ([COPY | {"ranks": [0, 4, 5]}], HEAD, "are not two ranks"),
        ([COPY | {"ranks": [0, 9]}], HEAD, "there is no rank 9"),
        ([COPY | {"rate": "1 Gbit/s"}], HEAD, "duration: is missing"),
        ([{key: COPY[key] for key in ("kind", "ranks", "size")}], HEAD, "deadline: is missing"),
        ([COPY | {"start": "20 ms"}], HEAD, "is not after the start"),
        ([COPY | {"latest": "10 ms"}], HEAD, "is not after the deadline"),
        ([STREAM | {"latest": "6 ms"}], HEAD, "is not after the end of its duration"),
        ([COPY | {"chunk": "1 B"}], HEAD, "4,000,000 messages; allowed: 20,000"),
        ([COPY | {"size": "1000 TB"}], HEAD, "copy is refused"),
        ([COPY | {"deadline": "1 us"}], HEAD, "copy is refused: nothing by 1 us"),
        ([COPY | {"class": "b"}, {"class": "a"}], HEAD + CLASSES, "is served before transfers or together with them"),
        ([COPY], HEAD + '[admission]\nprotect = "all"', "allowed: none, link"),
        ([COPY | {"deadline": "1 ns"}], HEAD, "copy is refused: nothing by 1 ns"),
    ],
)
def test_an_impossible_transfer_or_admission_table_is_refused_with_the_reason(jobs, head, says):
    with pytest.raises(ScenarioError) as caught:
        setting(*jobs, head=head)
    assert says in str(caught.value)


def test_a_transfer_is_deferred_to_a_deadline_at_which_it_fits_despite_rounding():
    """The earliest end that the linear programme finds for this mix does not fit itself, because of rounding."""
    found = mixes.mix(212)
    assert [one.outcome for one in found.transfers] == ["deferred", "deferred"]


def test_in_the_vm_transfers_arrive_in_time_unless_a_refused_one_is_forced_in(vm):
    """The mixes run over rails and over logical links, and with either of two links down against which transfers are
    protected; that it may be any link is tested by the model."""
    found = vm.report("mixes", "1,2,12", "0.2", "200", "2")
    every = [one for mix in found for one in mix["promised"]]
    assert {one["outcome"] for one in every} == {"admitted", "deferred", "refused"}
    for one in every:
        assert (one["there_s"] is None) == (one["outcome"] == "refused")
        assert one["there_s"] is None or one["there_s"] <= one["due_s"]
    forced = [mix["forced"] for mix in found if mix["forced"]]
    assert forced and all(one["late"] for one in forced)


def test_transfers_admitted_at_the_prompt_arrive_in_time_beside_those_of_the_scenario(vm):
    answers = {
        "demand": "copy is admitted: 20 MB by 10 ms",
        "admit 10 MB g2 g6 by 40 ms": "admit4 is admitted: 10 MB by 40 ms",
        "allgather chunk 8 MB": "ratio 1.000",
        "admit 1 TB g0 g4 by 10 ms": "admit5 is refused",
        "admit 1 MB g0 g1 by 1 ms": "ranks 0 and 1 are in one site",
        "admit 1 MB g0 g4 1 ms": 'got "1 MB g0 g4 1 ms"; allowed: admit SIZE',
        "link s0b0 s1b0 down": "s0b0 - s1b0 is down",
        "demand ": "late is broken",
        "admit 1 Gbit/s g3 g7 for 2 ms": "admit5 is refused: nothing for 2 ms",
        "demand clear": "no transfer is requested",
        "admit 2 Gbit/s g3 g7 for 2 ms": "admit1 is admitted: 2 Gbit/s for 2 ms from 0 s on",
        "demand everything": 'got "everything"; allowed: demand [clear]',
    }
    ended = vm.run("admission", "--cli", program=[RUN], input="\n".join(answers).encode(), timeout=400)
    assert ended.status == 1, ended.err  # some of the lines are refused
    for words in answers.values():
        assert words in ended.out
    promised = [line.split() for line in ended.out.splitlines() if "promised by" in line]
    assert [line[0] for line in promised] == ["copy:", "stream:", "late:", "admit4:", "admit1:"]
    assert all(line[-1] == "kept" for line in promised)


def test_transfers_measured_in_the_vm_arrive_in_time_and_the_calendar_figure_shows_them(tmp_path, capsys):
    """Two transfers are sent while a link is down against which they are protected; a third one is refused."""
    scenario = tmp_path / "asks.toml"
    third = STREAM | {"name": "third", "rate": "30 Gbit/s"}
    found = setting(COPY, STREAM, third, tail='[transport]\nrto_min = "10 ms"\n[admission]\nprotect = "link"')
    fault = '\n[[fault]]\nat = "collective 0"\nwhat = "link s0b0-s1b0 down"\n'
    scenario.write_text(resolved(found).replace("[[job]]", f"{fault}[[job]]", 1))
    arguments = [str(scenario), "--engine", "emulation", "--json", "--out", str(tmp_path / "run")]
    assert command.run(arguments) == 0
    (point,) = json.loads(capsys.readouterr().out)["points"]
    copy, stream, third = point["transfers"]
    assert copy["kept"] and stream["kept"] and third["outcome"] == "refused" and "kept" not in third
    assert not any("s0b0>s1b0" in tunnel for one in (copy, stream) for tunnel in one["rates_bps"])
    settings = open_run(tmp_path / "run").provenance["vm"]["after"]["sysctls"]
    assert (settings["net.ipv4.tcp_rto_min_us"], settings["gpu"]["net.ipv4.tcp_rto_min_us"]) == ("200000", "10000")
    drawn = pd.read_csv(tmp_path / "run" / "figures" / "scenario-calendar.csv")
    drawn["bytes"] = drawn.bps * (drawn.to_s - drawn.from_s) / 8
    by_job = drawn[drawn.what != "due"].groupby(["job", drawn.what == "delivered"]).bytes.sum()
    for job, whole in (("copy", 4e6), ("stream", 1e6)):
        assert by_job[job, False] == pytest.approx(whole, rel=1e-6)
        assert by_job[job, True] == pytest.approx(whole, rel=1e-6)


def test_a_transfer_stays_admitted_with_more_paths_and_many_messages_arrive_in_time(tmp_path, capsys):
    """Paths other than the shortest have longer delays, and one connection carries 256 small messages, which wait
    for no acknowledgement."""
    job = {"kind": "transfer", "name": "far", "ranks": [0, 4], "size": "5 MB", "deadline": "28 ms"}
    on_map = '[fabric]\nrouting = "spray"\nwan = "topohub:sndlib/nobel-us"\nsites = ["Palo Alto", "Princeton"]\n'
    for paths in (1, 2, 4):
        found = setting(
            job, head=f'{on_map}paths = {paths}\n[conditions]\nwan_rate = "10 Gbit/s"\n[run]\nmodes = ["base"]\n'
        )
        assert [one.outcome for one in found.transfers] == ["admitted"]
    (tmp_path / "far.toml").write_text(resolved(found))
    assert (
        command.run(
            [
                str(tmp_path / "far.toml"),
                "--engine",
                "emulation",
                "--collectives",
                "1",
                "--json",
                "--no-report",
                "--out",
                str(tmp_path / "run"),
            ]
        )
        == 0
    )
    (point,) = json.loads(capsys.readouterr().out)["points"]
    assert [one["kept"] for one in point["transfers"]] == [True]


def test_the_answer_tells_how_many_promises_are_kept_and_which_transfers_are_late(tmp_path):
    """Kept is what arrives by its deadline in jobs.parquet. Without admission everything is sent at once over one link,
    of which both halves arrive when all 60 MB have, after 48 ms."""
    table = """[fabric]\nrouting = "{}"\n[conditions]\nwan_rate = "10 Gbit/s"\nintra_rate = "100 Gbit/s"
[collective]\ncount = 2\nemulated = 1\n[run]\nmodes = ["base"]\n"""
    jobs = """[[job]]\nname = "{}"\nkind = "transfer"\nranks = [{}]\nsize = "30 MB"\ndeadline = "{}"\n"""
    both = jobs.format("soon", "0, 4", "40 ms") + jobs.format("later", "1, 5", "60 ms")
    for routing, words in (
        ("spray", "2 of 2 promises kept."),
        ("single", "1 of 2 in time; late: soon; none is promised,"),
    ):
        (tmp_path / f"{routing}.toml").write_text(table.format(routing) + both)
        said, _ = ended(f"{routing}.toml", "--engine", "model", "--out", tmp_path / routing, cwd=tmp_path)
        there_s = pd.read_parquet(tmp_path / routing / "jobs.parquet").groupby("job").completion_s.max()
        in_time = int(there_s["soon"] <= 0.040) + int(there_s["later"] <= 0.060)
        assert f"Of the transfers (timing model): {words}" in said and words.startswith(f"{in_time} of 2")
