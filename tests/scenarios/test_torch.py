"""Unmodified third-party collectives on the emulated hosts: PyTorch over Gloo. Run with ``pytest -m torch``.

The tests install PyTorch from the package index into a virtual environment of its own (1 GB; several GB where the index
has only builds with CUDA).
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from analysis.model.lower_bound import LowerBound
from scenarios.policies.conditions import conditions_of
from scenarios.spec.load import load_scenario, resolved
from tests.conftest import PROJECT, VM, own_python
from tests.fakes.runs import ended

pytestmark = pytest.mark.torch

TORCH = "torch==2.13.0"


@pytest.fixture(scope="module")
def python() -> Iterator[Path]:
    """A Python interpreter with PyTorch."""
    with own_python([TORCH]) as found:
        yield found


def test_gloo_collectives_are_correct_and_not_faster_than_the_lower_bound(
    vm: VM, python: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scenario = load_scenario("paper")
    (vm.folder / "paper.toml").write_text(resolved(scenario))
    guest = [sys.executable, str(PROJECT / "tests/guest/gloo.py"), "paper.toml", str(python)]
    ended = vm.run("--memory", "6 GiB", "--", *guest, timeout=900)
    assert ended.status == 0, ended.err
    conditions = conditions_of(scenario)
    found = {line["kind"]: line for line in map(json.loads, ended.out.splitlines()[-4:])}
    with capsys.disabled():
        print()
        for kind, line in found.items():
            for name, time_s in [("ours", line["ours_s"]), *(("gloo", time_s) for time_s in line["gloo_s"])]:
                print(f"{kind}, {name}: {time_s * 1e3:.3f} ms")
    for kind, line in found.items():
        bound = LowerBound(
            conditions.fabric,
            delays_s=conditions.delays_s,
            kind=kind,
            block_bytes=scenario.collective.chunk_bytes,
        )
        least_s = float(bound.seconds(conditions.drawn.rates_bps(0, 1))[0])
        assert line["right"], kind
        assert min([line["ours_s"], *line["gloo_s"]]) > least_s, kind
    # Gloo's AllGather is a ring as well, over the same slowest edge: it cannot be faster, and it adds its own messages.
    assert all(0.999 < time_s / found["allgather"]["ours_s"] < 1.1 for time_s in found["allgather"]["gloo_s"])


@pytest.mark.parametrize(("every", "steps"), [(1, 5), (10, 10)])
def test_a_trained_model_puts_on_the_wan_what_its_gradients_imply(
    tmp_path: Path, python: Path, capsys: pytest.CaptureFixture[str], every: int, steps: int
) -> None:
    command = f"{python} {PROJECT / 'tests/guest/ddp.py'} {every} {steps}"
    options = ("--modes", "base", "--wan-delay", "20 ms", "--set", 'program.memory="6 GB"', "--json", "--out", "run")
    found = json.loads(ended("paper", "--exec", command, *options, cwd=tmp_path)[0])
    ranks = [json.loads((tmp_path / f"run/output/{rank}.stdout").read_text()) for rank in range(8)]
    step_ms = max(one["step_s"] for one in ranks) * 1e3
    with capsys.disabled():
        print(f"\nevery {every}: {step_ms:.3f} ms a step, {found['wall_s']} s of wall time")
    size, carried = ranks[0]["bytes"], {link["link"]: link["bytes"] for link in found["links"]}
    # Each rank of a ring sends 2 (n-1)/n of the buffer to the next rank; for two ranks that is in the other site.
    expected = steps // every * 2 * 7 / 8 * size
    # DistributedDataParallel first broadcasts the model in a binomial tree with 4 edges from site 0 to site 1.
    broadcast = 4 * size if every == 1 else 0
    headers = 9014 / 8948
    assert carried["s1b0>s0b0"] == pytest.approx(expected * headers, rel=0.02)
    assert carried["s0b0>s1b0"] == pytest.approx((expected + broadcast) * headers, rel=0.02)
    # A chunk takes 14 hops round the ring, at least 3 of them over the WAN; computing is a sleep of 20 ms.
    assert all(one["step_s"] > 0.02 + 3 * 0.02 / every for one in ranks)
    assert found["drops"] == 0
