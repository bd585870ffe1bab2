"""The sentence that compares runs of a program, of each of which one time is known."""

import pytest

from analysis.statistics.contests import MODE, Place, Setting, Value
from analysis.statistics.program_answer import program_answer


def rate(gbit):
    return Value("conditions.wan_rate", f"wan rate {gbit} Gbit/s", gbit * 1e9)


def delay(ms):
    return Value("conditions.wan_delay", f"{ms} ms", ms / 1e3)


def buffer(kb):
    return Value("fabric.buffer", f"buffer {kb} kB", kb * 1e3)


def seed(number):
    return Value("run.seed", f"seed {number}")


def said(cases, *, baseline=None, quantity="median step", without=()):
    """Return the sentence on cases, each of them swept values and a time in s by mode, but for those points `without`
    a time."""
    settings = [
        Setting(
            index=at,
            label=", ".join(["8 GPUs", *(value.words for value in values)]),
            kind="allgather",
            at=tuple(values),
            modes=tuple(times_s),
            baseline=baseline or {},
        )
        for at, (values, times_s) in enumerate(cases)
    ]
    known = {Place(at, mode): time_s for at, (_, times_s) in enumerate(cases) for mode, time_s in times_s.items()}
    return program_answer(settings, {at: time_s for at, time_s in known.items() if at not in without}, quantity)


@pytest.mark.parametrize(
    ("cases", "options", "sentence"),
    [
        pytest.param([([], {"base": 1.0})], {}, "", id="one run"),
        pytest.param(
            [([], {"base": 2.0, "wan": 1.0, "joint": 1.5})],
            {},
            "base, wan and joint compared by the median step, 8 GPUs: wan is fastest, 50.0 % below base, and 33.3 % "
            "below joint, the next best.",
            id="modes",
        ),
        pytest.param(
            [([], {"base": 2.0, "wan": 2.5})],
            {},
            "base and wan compared by the median step, 8 GPUs: base is fastest; wan, the next, takes 25.0 % longer.",
            id="the baseline is fastest",
        ),
        pytest.param(
            [([], {"base": 2.0, "wan": 2.0})],
            {"quantity": "run's time"},
            "base and wan compared by the run's time, 8 GPUs: base and wan take the same time, 2,000 ms.",
            id="equal",
        ),
        pytest.param(
            [([], {"base": 2.0, "wan": 1.0, "joint": 1.5})],
            {"baseline": {MODE: "joint"}},
            "base, wan and joint compared by the median step, 8 GPUs: wan is fastest, 33.3 % below joint.",
            id="another baseline",
        ),
        pytest.param(
            [([rate(10)], {"base": 0.08}), ([rate(40)], {"base": 0.02})],
            {},
            "wan rate 10 Gbit/s and wan rate 40 Gbit/s compared by the median step, 8 GPUs: the median step is 80 ms "
            "at wan rate 10 Gbit/s and 20 ms at wan rate 40 Gbit/s.",
            id="conditions are side by side",
        ),
        pytest.param(
            [([delay(ms), buffer(kb)], {"base": ms + 1 / kb}) for ms in (1, 2, 4) for kb in (100, 200)],
            {},
            "buffer 100 kB and buffer 200 kB compared by the median step, 3 configurations: buffer 200 kB is fastest "
            "at all 3, 0.1 to 0.5 % below buffer 100 kB; the gain of buffer 200 kB falls from 0.5 % at 1 ms to 0.1 % "
            "at 4 ms, and half of it is lost between 2 ms and 4 ms; buffer 100 kB takes 1,010 ms at 1 ms and 4,010 "
            "ms at 4 ms.",
            id="a choice at each of several delays",
        ),
        pytest.param(
            [([seed(n)], {"base": 2.0 * n, "wan": 1.0}) for n in (1, 2, 3)],
            {},
            "base and wan compared by the median step, the mean of 3 seeds, 8 GPUs: wan is fastest, 75.0 % below base.",
            id="seeds are repetitions",
        ),
        pytest.param(
            [([], {"base": 2.0, "wan": 1.0, "joint": 1.5})],
            {"without": [Place(0, "wan")]},
            "base and joint compared by the median step, 8 GPUs: joint is fastest, 25.0 % below base.",
            id="a run that failed",
        ),
        pytest.param(
            [([], {"base": 2.0, "wan": 1.0, "joint": 1.5})],
            {"without": [Place(0, "base")]},
            "wan and joint compared by the median step, 8 GPUs: wan is fastest, 33.3 % below joint, the next.",
            id="the baseline failed",
        ),
    ],
)
def test_each_case_of_a_programs_answer_has_its_sentence(cases, options, sentence):
    assert said(cases, **options) == sentence
