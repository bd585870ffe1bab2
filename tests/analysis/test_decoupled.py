"""Decoupled DiLoCo in the model: against closed forms, and against a simulation in units of time."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.model.decoupled import Decoupled, Trained, availability_goodput, drawn_outages, trained
from hosts.collectives.training import Training


@given(
    st.integers(1, 6),
    st.floats(0.1, 10),
    st.integers(1, 40),
    st.floats(0, 50),
    st.floats(0, 50),
    st.data(),
)
def test_equal_sites_take_the_rounds_of_streaming_diloco(
    sites: int, step_s: float, every: int, up_s: float, down_s: float, data: st.DataObject
) -> None:
    """H c + P max(0, T - tau c), for any quorum, where T is the way to the syncer and back."""
    fragments = data.draw(st.sampled_from([one for one in range(1, every + 1) if every % one == 0]))
    overlap = data.draw(st.integers(0, every // fragments))
    spec = Decoupled(
        step_s=[step_s] * sites,
        quorum=data.draw(st.integers(1, sites)),
        every=every,
        fragments=fragments,
        overlap=overlap,
        up_s=up_s,
        down_s=down_s,
    )
    found = trained(spec, 7 * fragments)
    round_s = every * step_s + fragments * max(0.0, up_s + down_s - overlap * step_s)
    # The last sum is there at the end, which may be before the steps beside it are over.
    last_s = overlap * step_s - min(overlap * step_s, up_s + down_s)
    assert max(found.time_s) == pytest.approx(7 * round_s) and min(found.time_s) >= 7 * round_s - last_s - 1e-6
    assert found.in_time == (7 * fragments,) * sites and found.lost_s == (0.0,) * sites
    assert found.kept_s == pytest.approx([(7 * every - overlap) * step_s] * sites)


@pytest.mark.parametrize("quorum", [1, 2, 3, 4])
def test_fast_sites_wait_for_the_quorum_and_slow_ones_for_nobody(quorum: int) -> None:
    step_s = [2.0, 1.0, 5.0, 3.0]
    found = trained(Decoupled(step_s=step_s, quorum=quorum, every=10), 1000)
    pace_s = sorted(step_s)[quorum - 1]
    shares = [kept_s / time_s for kept_s, time_s in zip(found.kept_s, found.time_s, strict=True)]
    assert shares == pytest.approx([min(1.0, one / pace_s) for one in step_s])
    assert found.in_time == tuple(1000 if one <= pace_s else 0 for one in step_s)


def test_a_grace_time_takes_in_what_comes_within_it() -> None:
    spec = {"step_s": [1.0, 1.1, 2.0], "quorum": 1, "every": 10}
    assert trained(Decoupled(**spec), 5).in_time == (5, 0, 0)
    assert trained(Decoupled(**spec, grace_s=1.0), 5).in_time == (5, 5, 0)
    assert trained(Decoupled(**spec, grace_s=1.0), 5).time_s[:2] == (55.0, 55.0)  # the first waits for the second
    assert trained(Decoupled(**spec, grace_s=5.0), 5).time_s[0] == 75.0
    assert trained(Decoupled(**spec, grace_s=50.0), 5).time_s[0] == 100.0  # all are there


@pytest.mark.parametrize(("quorum", "waits"), [(3, True), (2, False)])
def test_a_site_that_dies_and_returns_costs_all_its_time_or_only_its_own(quorum: int, waits: bool) -> None:
    """Sums are 10 s apart. Site 1 dies at 34 s and is back at 57 s; it loads for 2 s and does 10 steps again."""
    spec = Decoupled(step_s=[1.0] * 3, quorum=quorum, every=10, load_s=2.0)
    found = trained(spec, 10, [[], [(34.0, 57.0)], []])
    assert found.lost_s == (0.0, 4.0, 0.0)
    if waits:
        assert found.time_s == (100.0 + 29.0,) * 3  # it is at 30 s again at 59 s
        assert found.kept_s == (100.0,) * 3 and found.in_time == (10,) * 3
    else:
        assert found.time_s == (100.0, 109.0, 100.0)
        # It goes on with the sum at 60 s, for which it is late, and 9 s behind from then on.
        assert found.in_time == (10, 3, 10) and found.kept_s == (100.0, 80.0, 100.0)


def test_without_a_quorum_for_ever_the_training_stands() -> None:
    spec = Decoupled(step_s=[1.0] * 3, quorum=2, every=10)
    found = trained(spec, 10, [[(25.0, math.inf)], [(47.0, math.inf)], []])
    assert found.quorum_lost and found.in_time == (2, 4, 4)
    assert not trained(spec, 10, [[(25.0, math.inf)], [], []]).quorum_lost


@pytest.mark.parametrize("quorum", [8, 6, 4, 1])
def test_goodput_under_failures_is_the_binomial_sum(quorum: int) -> None:
    """Sums are close together, so that little is lost with a site, and a wait ends soon."""
    spec = Decoupled(step_s=[1.0] * 8, quorum=quorum, every=30)
    expected = availability_goodput(8, quorum, 0.9)
    outages = drawn_outages(8, 1e7, between_s=9000.0, outage_s=1000.0, seed=1)
    found = trained(spec, 40_000, outages)
    assert 1.1e6 < max(found.time_s) < 1e7
    assert found.goodput == pytest.approx(expected, abs=0.02)
    if quorum == 8:
        assert expected == pytest.approx(0.9**8)
    if quorum == 1:
        assert expected == pytest.approx(0.9)


def test_dues_are_those_of_trainings_schedules() -> None:
    for every, fragments in ((100, 16), (10, 3), (7, 7), (5, 1)):
        spec = Decoupled(step_s=[1.0], quorum=1, every=every, fragments=fragments)
        of_round = [due for _, due in Training(every=every, fragments=fragments).syncs]
        assert [*map(spec.due, range(2 * fragments))] == [*of_round, *(every + due for due in of_round)]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"quorum": 3}, "a quorum of 3 of 2 sites; allowed: 1 to 2"),
        ({"fragments": 11}, "11 fragments in 10 steps; allowed: 1 to 10"),
        ({"fragments": 2, "overlap": 6}, "an overlap of 6 steps; allowed: 0 to 5"),
    ],
)
def test_what_is_no_training_is_refused(wrong: dict[str, int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Decoupled(**{"step_s": [1.0, 1.0], "quorum": 1, "every": 10, **wrong})  # type: ignore[arg-type]


# --- a simulation in units of time ------------------------------------------------------------------------------------


class Unit:
    """A site that works through the same training unit by unit: `left` units of a leg of sum `number`."""

    def __init__(self, spec: Decoupled, step: int) -> None:
        self.spec, self.step_units, self.number, self.leg = spec, step, 0, "to the sum"
        self.begins = [spec.due(number) - spec.overlap for number in range(100)]
        self.left, self.back, self.unsent = self.begins[0] * step, -1, 0
        self.step, self.kept, self.lost = 0, 0, 0

    def begin(self, number: int) -> None:
        """Begin the steps up to a sum."""
        self.number, self.leg = number, "to the sum"
        self.left = (self.begins[number] - self.step) * self.step_units

    def rejoin(self, number: int, has_sent: bool) -> None:
        """Go on with the pending sum, or wait for it if its part has been sent."""
        if has_sent:
            self.number, self.leg, self.step = number, "beside it", self.begins[number]
        else:
            self.step = self.begins[number - 1] if number else 0
            self.begin(number)


def simulated(spec: Decoupled, sums: int, outages: list[list[tuple[int, int]]]) -> Trained | None:
    """Return the same as `trained` for whole units, with all sites looked at in each unit; None if they stand."""
    sites = [Unit(spec, int(step_s)) for step_s in spec.step_s]
    dues = [*map(spec.due, range(100))]
    arrivals: list[dict[int, int]] = [{} for _ in range(100)]
    merged: dict[int, int] = {}
    over: dict[int, int] = {}
    up, down, grace, load = (int(one) for one in (spec.up_s, spec.down_s, spec.grace_s, spec.load_s))
    for now in range(5000):
        changed = True
        for site in sites:
            if site.back < now and site.left and now:
                site.left -= 1
                site.unsent += 1
        while changed:
            changed = False
            pending = len(merged)
            if pending < sums:
                here = sorted(arrivals[pending].values())
                if len(here) >= spec.quorum and here[spec.quorum - 1] <= now:
                    enough = here[spec.quorum - 1]
                    all_here = len(here) == len(sites) and here[-1] <= now
                    if now >= enough + grace or all_here:
                        merged[pending] = now
                        changed = True
            for index, site in enumerate(sites):
                if site.leg == "away" or site.left or site.number >= sums:
                    continue
                if site.leg == "to the sum":
                    arrivals[site.number][index] = now + up
                    site.kept, site.unsent, site.leg = site.kept + site.unsent, 0, "beside it"
                    site.left, site.step, changed = spec.overlap * site.step_units, dues[site.number], True
                elif site.number in merged and merged[site.number] + down <= now:
                    site.begin(site.number + 1)
                    changed = True
                    if site.number == sums:
                        over[index] = now
            if not changed:  # what is merged at this instant comes before those that are back
                for index, site in enumerate(sites):
                    if site.back == now and site.leg == "away":
                        site.back = -1
                        if len(merged) < sums:
                            site.rejoin(len(merged), index in arrivals[len(merged)])
                            changed = True
        for index, site in enumerate(sites):
            for dies, back in outages[index]:
                if dies == now and index not in over:
                    site.lost, site.unsent, site.left = site.lost + site.unsent, 0, 0
                    site.leg, site.back = "away", back + load
        ended = len(merged) == sums and now >= merged[sums - 1] + down
        if ended and all(index in over or site.leg == "away" for index, site in enumerate(sites)):
            end = merged[sums - 1] + down
            return Trained(
                tuple(float(over.get(index, end)) for index in range(len(sites))),
                tuple(float(site.kept) for site in sites),
                tuple(float(site.lost) for site in sites),
                tuple(
                    sum(of.get(index, 9999) <= merged[k] for k, of in enumerate(arrivals[:sums]))
                    for index in range(len(sites))
                ),
            )
    return None


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_training_is_that_of_a_simulation_unit_by_unit(data: st.DataObject) -> None:
    draw = data.draw
    sites = draw(st.integers(1, 4))
    every = draw(st.integers(1, 6))
    fragments = draw(st.integers(1, every))
    spec = Decoupled(
        step_s=[draw(st.integers(1, 4)) for _ in range(sites)],
        quorum=draw(st.integers(1, sites)),
        every=every,
        fragments=fragments,
        overlap=draw(st.integers(0, every // fragments)),
        up_s=draw(st.integers(0, 6)),
        down_s=draw(st.integers(0, 6)),
        grace_s=draw(st.integers(0, 5)),
        load_s=draw(st.integers(0, 5)),
    )
    outages = []
    for _ in range(sites):
        ends = sorted(draw(st.lists(st.integers(1, 120), min_size=0, max_size=6, unique=True)))
        pairs = [*zip(ends[::2], ends[1::2], strict=False)]
        # It does not die again while it loads.
        outages.append([pair for n, pair in enumerate(pairs) if not n or pair[0] > pairs[n - 1][1] + spec.load_s])
    sums = draw(st.integers(1, 20))
    found = trained(spec, sums, outages)
    expected = simulated(spec, sums, outages)
    assert expected is not None
    assert found == expected
