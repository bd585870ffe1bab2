"""The fluid with classes: closed forms on one link, and without classes the other fluid's times."""

import numpy as np
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from analysis.model import fluid
from hosts.collectives.schedule import Transfer

GB = 8e9


def ends(sizes, links, capacity_bps, *, of, serves=(True,), assured=(0.0, 0.0), ceilings=(1.0, 1.0), after=None):
    """When a message of each of these sizes (GB), on flows of their own, has arrived."""
    transfers = [
        Transfer(flow=index, size=size, after=() if after is None else after[index]) for index, size in enumerate(sizes)
    ]
    found = fluid.times(
        transfers,
        np.array([links], np.int32),
        np.array([capacity_bps], np.float64),
        np.zeros((1, len(sizes))),
        slot_bytes=1e9,
        classes=fluid.Classes(of_flow=of, serves=serves, assured=assured, ceilings=ceilings),
    )
    return found.arrives_s[:, 0].tolist()


def test_gold_is_as_alone_and_bronze_takes_what_it_leaves():
    assert ends([2, 3], [[0], [0]], [GB], of=[0, 1]) == pytest.approx([2, 5])
    # Gold of two flows, fair among themselves; bronze has nothing until both are over.
    assert ends([2, 1, 1], [[0]] * 3, [GB], of=[0, 0, 1]) == pytest.approx([3, 2, 4])


def test_a_ceiling_leaves_the_rest_and_an_assured_part_is_kept():
    assert ends([2, 1], [[0], [0]], [GB], of=[0, 1], ceilings=(0.5, 1)) == pytest.approx([4, 2])
    # Bronze has a quarter: after 4 s gold is over with 3, and bronze has 2 - 1 left.
    assert ends([3, 2], [[0], [0]], [GB], of=[0, 1], assured=(0, 0.25)) == pytest.approx([4, 5])


def test_gold_that_is_slow_elsewhere_leaves_the_link_to_bronze():
    """Gold passes a link of a quarter before; the other class has three quarters at once."""
    found = ends([1, 3], [[1, 0], [-1, 0]], [GB, GB / 4], of=[0, 1], serves=(True, False))
    assert found == pytest.approx([4, 4])


def test_bronze_that_waits_leaves_its_share_of_a_fair_link_to_gold():
    """Both leave through one fair link. Where the next is slower, bronze gets nothing of it and gold all of both; as
    fast, it has nothing to choose from."""
    slower = ends([3, 3], [[1, 0], [1, 0]], [0.75 * GB, GB], of=[0, 1], serves=(True, False))
    assert slower == pytest.approx([4, 8], rel=1e-9)
    assert ends([2, 1], [[1, 0], [1, 0]], [GB, GB], of=[0, 1], serves=(True, False)) == pytest.approx([3, 2])


def test_on_other_links_classes_are_alike():
    assert ends([1, 1], [[0], [0]], [GB], of=[0, 1], serves=(False,)) == pytest.approx([2, 2])


@settings(max_examples=200, deadline=None, phases=[Phase.generate])
@given(data=st.data())
def test_one_class_is_the_fluid_without(data):
    flows, count = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 5))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    links = np.array([[rng.permutation(count + 2)[:3] - 2 for _ in range(flows)]], np.int32)
    links[links < 0] = -1
    transfers = []
    for index in range(data.draw(st.integers(1, 15))):
        after = {int(rng.integers(index)) for _ in range(rng.integers(3))} if index else set()
        transfers.append(
            Transfer(flow=int(rng.integers(flows)), size=float(rng.integers(0, 4)), after=tuple(sorted(after)))
        )
    capacity, delay = rng.choice([1.0, 2.0, 3.5], (3, count)) * GB, rng.choice([0.0, 0.1], (3, flows))
    both = [
        fluid.times(transfers, links, capacity, delay, slot_bytes=1e9),
        fluid.times(
            transfers,
            links,
            capacity,
            delay,
            slot_bytes=1e9,
            classes=fluid.Classes(
                of_flow=[0] * flows, serves=(rng.random(count) < 0.5).tolist(), assured=[0.0], ceilings=[1.0]
            ),
        ),
    ]
    for name in ("begins_s", "leaves_s", "arrives_s"):
        assert np.allclose(*(getattr(one, name) for one in both), rtol=1e-9, atol=1e-12)


@settings(max_examples=500, deadline=None, phases=[Phase.explicit, Phase.generate])
@example(seed=1_330_694_084)  # half the way swings
@given(seed=st.integers(0, 2**32))
def test_rates_are_those_of_the_definition(seed):
    """Every flow passes something full on which none of its class is faster: a link, or what its class has of one."""
    rng = np.random.default_rng(seed)
    flows, count, kinds = (int(rng.integers(1, most)) for most in (9, 6, 4))
    links = np.array([rng.permutation(count + 2)[:3] - 2 for _ in range(flows)], np.int32)
    links[links < 0] = -1
    capacity, of, serves = rng.uniform(1, 4, count) * GB, rng.integers(0, kinds, flows), rng.random(count) < 0.6
    assured, ceilings = rng.dirichlet(np.ones(kinds)) * rng.choice([0, 0.5, 1]), rng.choice([1, 0.8, 0.5], kinds)
    rates, bottleneck = fluid.fair_rates(
        links,
        capacity,
        fluid.Classes(
            of_flow=of.tolist(), serves=serves.tolist(), assured=assured.tolist(), ceilings=ceilings.tolist()
        ),
    )
    on = np.array([[link in row for row in links] for link in range(count)])
    for flow in range(flows):
        limits = []
        for link in links[flow][links[flow] >= 0]:
            room, those = capacity[link], on[link]
            if serves[link]:
                used, mine = np.bincount(of, rates * on[link], kinds), of[flow]
                behind = np.minimum(used, assured * room)[mine + 1 :].sum()
                room = min(ceilings[mine] * room, max(assured[mine] * room, room - used[:mine].sum() - behind))
                those = those & (of == mine)
            slack = 1e-9 * capacity[link]
            assert rates[those].sum() <= room + slack
            if rates[those].sum() >= room - slack and rates[flow] >= rates[those].max() - slack:
                limits.append(link)
        assert bottleneck[flow] in limits or (not limits and bottleneck[flow] == -1 and rates[flow] == np.inf)


@pytest.mark.parametrize(
    "change",
    [{"of": [0, 2]}, {"of": [0]}, {"assured": (0.6, 0.6)}, {"ceilings": (1.5, 1)}, {"serves": (True, False)}],
)
def test_what_does_not_fit_is_a_sentence(change):
    with pytest.raises(ValueError, match="allowed"):
        ends([1, 1], [[0], [0]], [GB], **{"of": [0, 1]} | change)
