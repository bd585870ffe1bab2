"""Messages of MPI libraries' algorithms, timed: closed forms."""

from collections.abc import Callable, Iterator

import pytest

from tests.references.patterns import HEADER, WAN, Pattern, Step, binomial, exchange, near_first, ring


def pattern(ranks: int, eager: float = 1e9) -> Pattern:
    return Pattern([rank * 2 // ranks for rank in range(ranks)], eager=eager, **WAN)


def last_s(found: Pattern, steps: list[Step]) -> float:
    return max(found.times_s(found.run(steps)[1]))


def test_an_announced_message_takes_two_delays_more() -> None:
    send = [[(0, 1, 1e6)]]
    assert last_s(pattern(2), send) == pytest.approx(8e-3 + 10.0014e-3, rel=1e-4)
    assert last_s(pattern(2, eager=64e3), send) == pytest.approx(8e-3 + 3 * 10.0014e-3, rel=1e-4)


def test_a_ring_passes_its_blocks_over_the_wan_without_a_pause_and_an_exchange_shares_it() -> None:
    found = pattern(8)
    assert last_s(found, list(ring(8, 1e6))) == pytest.approx(7 * 8e-3 + 10e-3, rel=1e-3)
    assert found.wan_bytes(0) == found.wan_bytes(1) == 7 * (1e6 + HEADER)
    found = pattern(8)
    assert last_s(found, list(exchange(8, [(4, 1e6)]))) == pytest.approx(4 * 8e-3 + 10e-3, rel=1e-3)
    assert found.wan_bytes(0) == 4 * (1e6 + HEADER)


@pytest.mark.parametrize(("tree", "messages"), [(binomial, 1), (near_first, 4)])
def test_binomial_trees_reach_every_rank_and_cross_the_wan_once_or_from_every_rank(
    tree: Callable[[int, float], Iterator[Step]], messages: int
) -> None:
    assert sorted(dst for step in tree(8, 1e6) for _, dst, _ in step) == [1, 2, 3, 4, 5, 6, 7]
    found = pattern(8)
    found.run(tree(8, 1e6))
    assert (found.wan_bytes(0), found.wan_bytes(1)) == (messages * (1e6 + HEADER), 0)
