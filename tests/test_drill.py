"""What a campaign makes of a scenario that ends badly, without a VM: each ending by its name, and exit status 1."""

import json
import sys

import pytest

from scenarios import campaign
from scenarios.engines import point
from scenarios.testbed import launch
from scenarios.tools import drill
from scenarios.tools.drill import drawn
from scenarios.tools.outcomes import Outcome

DRILL = drawn(0, 1, 1)  # one fault: "controller killed", in mode joint
WELL = {"fault": 0, "at_collective": 1, "what": DRILL.whats[0], "detected_s": 0.1, "recovered_s": 1.0,
        "collectives_lost": 2, "bytes_again": 0, "outcome": "recovered"}  # fmt: skip


def lines(count=6, change=lambda row: row, account=WELL):
    """What a VM says of so many collectives that went as the plan has it; the last one changed."""
    from scenarios.engines.prediction import Expectations
    from scenarios.spec.load import scenario_of

    setting = scenario_of(DRILL.text)
    expected, n = Expectations(setting, DRILL.mode), setting.gpus
    for k in range(count):
        found = expected.of(k)
        row = {"collective": k, "completion_s": found.predicted_s, "drops": 0, "reembedded": False, "rerouted": True,
               "ring": found.ring.tolist(), "path": found.path.tolist(), "start_ns": [0] * n,
               "arrived_ns": [[10 * step for step in range(1, n)]] * n}  # fmt: skip
        yield change(row) if k == count - 1 else row
    yield {"event": {"event": "ended", "outcomes": [] if account is None else [account]}}


@pytest.fixture
def ending(monkeypatch):
    """Has the VM say these lines and words and end with this status; returns what comes of the drill."""

    def put(said, *, status=0, words=b"", error=None):
        def testbed(_arguments, *, stdout, stderr, **_):
            for line in said:
                stdout.write(json.dumps(line).encode() + b"\n")
            stderr.write(words)
            if error is not None:
                raise error
            return status

        monkeypatch.setattr(launch, "testbed", testbed)
        monkeypatch.setattr(point, "fault_outcomes", lambda events: events[-1]["outcomes"])
        return [(o.what, o.outcome, o.sentence, o.lost) for o in drill.run(DRILL, patience_s=60)]

    return put


def test_every_ending_has_its_name(ending):
    (what,) = DRILL.whats
    assert ending(lines()) == [(what, "recovered", "", 2)]
    assert ending(lines(account=None)) == [(what, "ridden out", "", 0)]
    assert ending(lines(3, account=None), status=1, words=b"why it ended\n") == [(what, "aborted", "why it ended", 0)]
    aborted = WELL | {"outcome": "aborted: why it ended"}
    assert ending(lines(3, account=aborted), status=1, words=b"why it ended\n") == [
        (what, "aborted", "why it ended", 2)
    ]
    assert ending(lines(5)) == [(what, "hung", "5 of 6 collectives were told of", 0)]
    assert ending(lines(5), status=1) == [(what, "hung", "it failed without a word", 0)]
    said = "collective 2 delivered wrong data: GPU 1, step 1: byte 0 is wrong"
    assert ending(lines(3), status=1, words=said.encode()) == [(what, "wrong data", said, 0)]
    assert ending(lines(), words=b"Traceback (most recent call last)\n")[0][1] == "wrong data"
    undeclared = WELL | {"fault": -1, "what": "the process of GPU 2 died"}
    assert ending(lines(account=undeclared))[1:] == [
        ("not declared: the process of GPU 2 died", "recovered", "the process of GPU 2 died", 2)
    ]


@pytest.mark.parametrize("name", ["ring", "path"])
def test_a_choice_that_the_plan_does_not_have_is_wrong(ending, name):
    def other(row):
        return row | {name: row[name][::-1]}

    ((_, outcome, sentence, _),) = ending(lines(2, change=other))
    assert outcome == "wrong data" and f"collective 1: the {name} " in sentence and "the plan says" in sentence


@pytest.mark.parametrize(
    ("outcomes", "status"),
    [(["recovered", "ridden out", "aborted"], 0), (["recovered", "hung"], 1), (["wrong data"], 1)],
)
def test_the_exit_status_of_a_campaign_tells_whether_all_ended_well(monkeypatch, capsys, outcomes, status):
    left = iter(outcomes)
    monkeypatch.setattr(drill, "sizes_of", lambda count, _: [1] * count)
    monkeypatch.setattr(drill, "run", lambda *_: [Outcome(what="agent 1 killed", outcome=next(left), sentence="")])
    monkeypatch.setattr(sys, "argv", ["campaign.py", "--count", str(len(outcomes)), "--jobs", "1"])
    assert campaign.main() == status
    assert capsys.readouterr().out.splitlines()[-1].startswith("| all | ")


def test_what_a_campaign_leaves_behind_is_its_failure(monkeypatch, capsys):
    monkeypatch.setattr(drill, "run", lambda d, _: [Outcome(what="x", outcome="recovered", sentence="")])
    monkeypatch.setattr(campaign, "_children", lambda: ["4711"])
    monkeypatch.setattr(sys, "argv", ["campaign.py", "--count", "1", "--jobs", "1"])
    assert campaign.main() == 1
    assert "left something" in capsys.readouterr().out.splitlines()[0]
