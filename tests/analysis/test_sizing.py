"""Sizing, against hand computation, brute force and the numbers of the document."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.sizing import (
    AGREES,
    MODELS,
    PRECISIONS,
    Datacenter,
    Model,
    all_reduce_s,
    memory,
    placement,
    rows,
    step,
    trained_parameters,
)

FP4 = PRECISIONS["fp4"]
EXCEPTIONS = {
    ("", "power for computing"),
    ("", "103.5T parameters, 3,226T tokens"),
    ("", "300 MB in 100 ms, each flow"),
    ("100T", "all-gather in a rack"),
    ("50T", "tensor-parallel all-reduce"),
    ("50T", "all-reduces of a forward pass"),
    ("50T", "pipeline, point to point"),
    ("50T", "all-reduce between racks"),
}
EXACT = ("racks", "layers per rack", "replicas", "tensor parallelism", "pipeline parallelism")


def test_all_sizing_numbers_agree_with_the_document_except_for_known_exceptions() -> None:
    found = {(row.model, row.what): row for row in rows(Datacenter(), MODELS, FP4)}
    apart = {key for key, row in found.items() if row.difference is not None and abs(row.difference) > AGREES}
    assert apart == EXCEPTIONS
    assert all(found[key].note for key in EXCEPTIONS)
    assert all(row.difference == 0 for (_, what), row in found.items() if what in EXACT)
    assert {model for (model, what) in found if what == "replicas"} == {"100T", "50T"}
    assert all(row.note for row in found.values() if row.value is None)


def test_the_sizing_of_a_small_model_equals_a_hand_computation() -> None:
    """A layer of h = 10 without vocabulary has 1,200 parameters; a rack has 8 GPUs and 80 operations/s."""
    model = Model(name="", layers=2, hidden=10, heads=5, vocabulary=0, sequence=4, message_tokens=4)
    at = Datacenter(
        racks=7, gpus_per_rack=8, rack_flops=80, rack_memory_bytes=17_000, nvlink_bytes_s=100, nic_bytes_s=10
    )
    assert model.parameters == 2400
    kept = memory(model, FP4)
    assert (kept.parameters, kept.gradients, kept.optimizer) == (3600, 1200, 4800)
    assert kept.activations == 2 * 4 * 10 * (17 + 2.5 * 5 * 4 / 10)  # 1,760
    placed = placement(model, FP4, at)
    # A layer has 4,800 bytes, and 880 of activations split over its GPUs: 3 copies of 4,800 + 880 / 2 fit, 4 do not.
    assert (placed.layers_per_rack, placed.tensor, placed.racks_per_layer, placed.replicas) == (3, 2, 3, 9)
    assert placed.layer_bytes == 4800 + 440
    times = step(model, FP4, at)
    assert times.flop == 2 * 2400 * 4
    assert times.forward_s == pytest.approx(9600 / (2 * 10))
    assert times.backward_s == 2 * times.forward_s
    assert times.tensor_s == pytest.approx(2 * (10 + 10) * (1 / 2) / 100)  # MLP and attention: 4 x 10 x 0.5 / 2 each
    assert times.pipeline_s == pytest.approx(10 / 10)
    assert times.gradient_bytes == 600
    assert times.in_rack_s == pytest.approx(2 * 300 * (2 / 3) / 100)
    assert times.between_racks_s == pytest.approx(2 * 75 * (2 / 3) / 10)
    assert times.gather_s == times.in_rack_s / 2


@given(
    layers=st.integers(1, 300),
    hidden=st.integers(1, 200_000),
    gpus=st.integers(1, 100),
    precision=st.sampled_from(sorted(PRECISIONS)),
)
def test_a_rack_holds_as_many_copies_of_a_layer_as_fit_in_its_memory(
    layers: int, hidden: int, gpus: int, precision: str
) -> None:
    model, at = Model(name="", layers=layers, hidden=hidden), Datacenter(gpus_per_rack=gpus)
    kept = memory(model, PRECISIONS[precision])

    def fits(copies: int) -> bool:
        layer = (kept.parameters + kept.gradients + kept.optimizer + kept.activations / (gpus // copies)) / layers
        return copies * layer <= 13.5e12 * (1 + 1e-12)

    most = max((copies for copies in range(1, gpus + 1) if fits(copies)), default=0)
    if most == 0:
        with pytest.raises(ValueError, match=r"TB of a layer; allowed: the memory of a rack, 13\.5 TB"):
            placement(model, PRECISIONS[precision], at)
    else:
        assert placement(model, PRECISIONS[precision], at).layers_per_rack == most


def test_an_allreduce_of_one_gpu_takes_no_time_and_of_many_sends_its_bytes_twice() -> None:
    assert all_reduce_s(1e9, 1, 1e9) == 0
    assert all_reduce_s(1e9, 2, 1e9) == 1
    assert all_reduce_s(1e9, 10**6, 1e9) == pytest.approx(2, rel=1e-5)


def test_the_largest_trainable_model_takes_exactly_the_given_days() -> None:
    """6 N D operations for N parameters and D = 20 N tokens, on 100 racks of 50 operations/s each in fp8."""
    at = Datacenter(racks=100, rack_flops=100.0)
    n = trained_parameters(at, PRECISIONS["fp8"], days=90, tokens_per_parameter=20)
    assert 6 * n * (20 * n) / (100 * 50) == pytest.approx(90 * 86_400)


def test_without_a_number_of_racks_the_budget_decides_it() -> None:
    assert Datacenter(racks=None).number_of_racks == Datacenter().affordable_racks == 23_333
    with pytest.raises(ValueError, match="224 layers; allowed: at most the number of racks, 100"):
        placement(MODELS[0], FP4, Datacenter(racks=100))


def test_fp16_keeps_16_bytes_per_parameter_and_half_the_precision_halves_the_time() -> None:
    usual = memory(MODELS[0], PRECISIONS["fp16"])
    kept = usual.parameters + usual.gradients + usual.optimizer
    assert kept == pytest.approx(16 * MODELS[0].parameters)  # mixed precision with Adam: 16 bytes a parameter
    at = Datacenter()
    work = {
        name: step(MODELS[1], one, at).forward_s * placement(MODELS[1], one, at).tensor
        for name, one in PRECISIONS.items()
    }
    assert work["fp16"] == pytest.approx(2 * work["fp8"]) == pytest.approx(4 * work["fp4"])
