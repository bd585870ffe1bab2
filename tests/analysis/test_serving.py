"""Requests that two sites serve: queues with known means, and links that are shared."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.model.serving import RULES, Offer, Request, Serving, loads, poisson, prefill, served, transfers_s

ALONE = Serving(
    local_servers=1,
    remote_servers=1,
    local_token_s=1e-4,
    remote_token_s=1e-4,
    cache_bytes=0,
    wan_bps=1e9,
    wan_delay_s=0.0,
    slots=1,
    token_s=0.0,
)


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_one_server_alone_is_m_g_1(load: float) -> None:
    """Pollaczek and Khinchine: the mean wait is the rate times the mean square of the service, by 2 (1 - load)."""
    requests = poisson(600_000, per_s=load / 0.1, input_tokens=1000, output_tokens=1, seed=7)
    service_s = np.array([request.input_tokens for request in requests]) * 1e-4
    found_s = served(requests, ALONE, prefill(requests, ALONE, RULES["local"])).first_token_s
    rate = len(requests) / requests[-1].arrival_s
    wait_s = rate * (service_s**2).mean() / 2 / (1 - rate * service_s.mean())
    assert found_s.mean() == pytest.approx(wait_s + service_s.mean(), rel=0.01)


def test_servers_and_slots_take_requests_in_order() -> None:
    requests = [Request(0.0, 1000, 5), Request(0.0, 1000, 1), Request(0.01, 500, 2)]
    two = ALONE.__class__(**(vars(ALONE) | {"local_servers": 2, "token_s": 0.02}))
    of = served(requests, two, prefill(requests, two, RULES["local"]))
    # Prefilled at 0.1, 0.1 and 0.15 s; one slot: 0.1 to 0.2, 0.2 to 0.22, 0.22 to 0.26 s.
    assert of.first_token_s == pytest.approx([0.12, 0.22, 0.23])
    assert of.end_s == pytest.approx([0.2, 0.22, 0.26])


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 40)), min_size=1, max_size=12))
def test_a_shared_link_is_that_of_small_steps(messages: list[tuple[int, int]]) -> None:
    """A link of 8 bit/s, in steps of a thousandth of a second; messages of bytes that begin at whole seconds."""
    begin, left = [float(at) for at, _ in messages], [float(size) for _, size in messages]
    step_s, now_s, ended = 1e-2, 0.0, dict[int, float]()
    while len(ended) < len(messages):
        active = [one for one in range(len(messages)) if begin[one] <= now_s + 1e-9 and one not in ended]
        for one in active:
            left[one] -= step_s / len(active)
            if left[one] <= 1e-9:
                ended[one] = now_s + step_s
        now_s += step_s
    found = transfers_s(begin, [size for _, size in messages], rate_bps=8, delay_s=3.0)
    assert found == pytest.approx([ended[one] + 3 for one in range(len(messages))], abs=step_s * (1 + len(messages)))


def test_a_rule_is_offered_what_would_come_true_and_the_cache_crosses_the_wan() -> None:
    serving = ALONE.__class__(**(vars(ALONE) | {"cache_bytes": 1e5, "wan_delay_s": 0.01, "remote_token_s": 5e-5}))
    requests, offers = [Request(0.0, 1000, 1), Request(0.0, 1000, 1), Request(0.0, 1000, 1)], list[Offer]()

    def rule(offer: Offer) -> bool:
        offers.append(offer)
        return len(offers) > 1

    of = served(requests, serving, prefill(requests, serving, rule))
    # A cache of 100 MB takes 0.8 s. The remote site prefills until 0.06 and 0.11 s; both caches share the WAN: 0.11 to
    # 1.61 s for the rest of the first, and the second ends at 1.66 s.
    assert of.first_token_s == pytest.approx([0.1, 1.62, 1.67])
    assert [offer.local_s for offer in offers] == pytest.approx([0.1, 0.2, 0.2])
    assert [offer.remote_s for offer in offers] == pytest.approx([0.87, 0.87, 1.67])
    assert [offer.wan_wait_s for offer in offers] == pytest.approx([0.0, 0.0, 0.75])


def test_loads_are_what_is_asked_for_by_what_there_is() -> None:
    serving = ALONE.__class__(**(vars(ALONE) | {"cache_bytes": 1e5, "slots": 4, "token_s": 0.02}))
    requests = [Request(0.0, 1000, 10), Request(1.0, 3000, 20), Request(2.0, 1000, 30)]
    of = loads(requests, serving, prefill(requests, serving, lambda offer: offer.input_tokens > 1000))
    # 2,000 and 3,000 tokens of 0.1 ms, 300 MB at 1 Gbit/s, and 60 tokens of 20 ms in four slots; within 2 s.
    expected = {"local servers": 0.1, "remote servers": 0.15, "the WAN": 1.2, "decoding": 0.15}
    assert of == pytest.approx(expected)
