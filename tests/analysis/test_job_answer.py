"""The answer of a run of jobs: a table of inputs and sentences; different work is not ranked."""

import re

import numpy as np
import pytest

from analysis.statistics.answer import answer
from analysis.statistics.contests import Place, Setting, Value, contests_of
from analysis.statistics.intervals import Series
from analysis.statistics.jobs_in_words import all_words_of, classes_sentence, told_apart
from tests.fakes import runs

TRAIN = {"name": "train", "size": "64 MB", "ranks": [0, 1, 4, 5]}
NOISE = {"name": "noise", "kind": "background", "rate": "5 Gbit/s", "ranks": [2, 6]}


def infer(**fields):
    return {"name": "infer", "ranks": [2, 3, 6, 7]} | {key.rstrip("_"): value for key, value in fields.items()}


def luck(seed):
    times = np.random.default_rng(seed).uniform(0.9, 1.1, 400)
    return times / times.mean()


def said(cases, *, count=400, hashed=()):
    """Return the answer to cases: their jobs, the further values of swept keys, and the mean time of each job.

    The times of all jobs are proportional to each other, so that a ratio is the same in every round."""
    jobs_swept = len({all_words_of(jobs) for jobs, *_ in cases}) > 1
    settings, times, of_jobs = [], {}, {}
    for index, (jobs, values, means) in enumerate(cases):
        at = [Value("job", all_words_of(jobs))] * jobs_swept + list(values)
        settings.append(
            Setting(
                index=index,
                label=", ".join(["8 GPUs", *map(str, map(all_words_of, [[job] for job in jobs]))]),
                kind="jobs",
                at=tuple(at),
                modes=("base",),
                baseline={},
                jobs=tuple(jobs),
                hashed=hashed,
            )
        )
        place = ("model", Place(index, "base"))
        series = {name: Series(np.arange(count), mean * luck(7)[:count]) for name, mean in means.items()}
        times[place] = max(series.values(), key=lambda one: one.completion_s.mean())
        of_jobs[place] = series
    return answer(settings, times, of_jobs), contests_of(settings)


SAME = "(the same in every collective)"
ONCE = " (all differences are the same in every collective)"
ROUNDS = "over 400 rounds each (timing model) in base, 8 GPUs"


@pytest.mark.parametrize(
    ("cases", "sentence"),
    [
        pytest.param(
            [
                ([TRAIN], [], {"train": 1.0}),
                ([TRAIN, infer(size="8 MB")], [], {"train": 1.25, "infer": 0.1}),
                ([TRAIN, infer(size="32 MB")], [], {"train": 1.5, "infer": 0.4}),
            ],
            f"train and infer in 3 configurations {ROUNDS}, train 64 MB on GPUs 0,1,4,5: train takes 1,000 ms alone; "
            f"1,250 ms beside infer 8 MB (infer runs for 8 % of this time), 25.0 % longer {SAME}; "
            f"1,500 ms beside infer 32 MB (infer runs for 27 % of this time), 50.0 % longer {SAME}; "
            "infer takes 100 ms with 8 MB; 400 ms with 32 MB.",
            id="a tenant that grows",
        ),
        pytest.param(
            [
                ([infer(), TRAIN], [], {"infer": 1.0, "train": 2.0}),
                ([infer(class_="gold"), TRAIN], [], {"infer": 0.5, "train": 2.5}),
            ],
            f"infer and train in 2 configurations {ROUNDS}, train 64 MB on GPUs 0,1,4,5: infer takes 1,000 ms without "
            f"class; 500 ms with class gold, 50.0 % less {SAME}; train takes 2,000 ms beside infer without class "
            "(infer runs for 50 % of this time); 2,500 ms beside infer class gold (infer runs for 20 % of this time), "
            f"25.0 % longer {SAME}.",
            id="a class",
        ),
        pytest.param(
            [
                ([TRAIN], [], {"train": 1.0}),
                ([TRAIN, NOISE], [], {"train": 1.0, "noise": 3.0}),
            ],
            f"train in 2 configurations {ROUNDS}, train 64 MB on GPUs 0,1,4,5: train takes 1,000 ms alone; 1,000 ms "
            "beside noise, as long.",
            id="nobody waits for background traffic",
        ),
        pytest.param(
            [
                (jobs, [Value("conditions.wan_delay", f"{ms} ms", ms)], {"train": ms * slow, "infer": 0.1})
                for ms in (1, 10)
                for jobs, slow in (([TRAIN, infer(size="8 MB")], 1), ([TRAIN, infer(size="9 MB")], 2))
            ],
            f"train and infer in 4 configurations {ROUNDS}, train 64 MB on GPUs 0,1,4,5: train takes 1,000 ms beside "
            "infer 8 MB at 1 ms (infer runs for 10 % of this time); 2,000 ms beside infer 9 MB at 1 ms (infer runs for "
            f"5 % of this time), 100.0 % longer {SAME}; 10,000 ms beside infer 8 MB at 10 ms (infer runs for 1 % of "
            "this time); 20,000 ms beside infer 9 MB at 10 ms (infer runs for 0 % of this time), 100.0 % longer "
            f"{SAME}; infer takes 100 ms with 8 MB at 1 ms; 100 ms with 9 MB at 1 ms; 100 ms with 8 MB at 10 ms; 100 "
            "ms with 9 MB at 10 ms.",
            id="jobs are compared where all else is the same",
        ),
        pytest.param(
            [([TRAIN, infer()], [], {"train": 1.0, "infer": 0.5})],
            "train and infer over 400 rounds (timing model) in base, 8 GPUs, train 64 MB on GPUs 0,1,4,5, infer on "
            "GPUs 2,3,6,7: train takes 1,000 ms; infer takes 500 ms.",
            id="one configuration",
        ),
    ],
)
def test_each_job_is_told_what_it_takes_and_loses(cases, sentence):
    found, contests = said(cases)
    assert found == sentence
    assert contests == ()


def test_too_few_rounds_are_told_once():
    text, _ = said(
        [([TRAIN], [], {"train": 1.0}), *(([TRAIN, infer(size=s)], [], {"train": 2.0}) for s in ("1 MB", "2 MB"))],
        count=20,
    )
    assert text.count("100.0 % longer") == 2 and text.count("too few") == 1
    assert text.endswith("(too few collectives for an interval: 60 or more).")


def test_a_comparison_without_an_interval_beside_others_says_so_itself():
    """At the end of the sentence the reason would belong to the last one, which has an interval."""
    thrice = np.where(np.arange(400) < 3, 2.0, 1.0)
    sizes = (("1 MB", thrice), ("2 MB", 2.0))
    text, _ = said(
        [([TRAIN], [], {"train": 1.0}), *(([TRAIN, infer(size=s)], [], {"train": mean}) for s, mean in sizes)]
    )
    alike, twice = text.removesuffix(".").split("; ")[1:3]
    assert re.search(r" % longer \(times differ in too few collectives for an interval\)$", alike)
    assert twice.endswith(f"100.0 % longer {SAME}")


def test_what_somebody_chooses_competes_and_tells_the_jobs_as_well():
    routings = [Value("fabric.routing", name) for name in ("single", "ecmp")]
    text, contests = said(
        [([TRAIN, infer()], [one], {"train": s, "infer": s}) for one, s in zip(routings, (2, 1), strict=True)]
    )
    assert len(contests) == 1 and "ecmp is fastest, 50.0 % below single" in text
    assert ". Of the jobs, train takes 2,000 ms at single; 1,000 ms at ecmp, 50.0 % less" in text


def test_a_job_is_also_compared_across_what_was_chosen_beside_the_jobs():
    """ECMP takes infer three times as long beside train, and no longer alone. A delay is given, and not compared."""
    means = {("single", 1): (0.1, 0.2), ("ecmp", 1): (0.1, 0.6), ("single", 9): (0.5, 0.8), ("ecmp", 9): (0.5, 0.4)}

    def told(count, *, delays):
        cases = [
            (
                jobs,
                [Value("fabric.routing", name), *[Value("conditions.wan_delay", f"{ms} ms", ms)] * delays],
                {"infer": infer_s} | ({"train": 2.0} if len(jobs) > 1 else {}),
            )
            for (name, ms), both in [*means.items()][:count]
            for jobs, infer_s in zip(([infer()], [infer(), TRAIN]), both, strict=True)
        ]
        return said(cases)[0].replace(f" {SAME}", "")

    text = told(2, delays=False)
    assert "; 100 ms alone at ecmp, as long as at single; " in text
    assert "; 600 ms beside train at ecmp, 500.0 % longer and 200.0 % longer than at single; train" in text
    text = told(4, delays=True)
    assert '; 400 ms beside train at "ecmp, 9 ms", 20.0 % less and 50.0 % less than at single' in text


def many(number):
    return [{"name": f"job{one}", "ranks": [one, one + 8]} for one in range(number)]


def test_of_up_to_six_jobs_each_has_a_clause_of_its_own():
    jobs = many(6)
    routings = [Value("fabric.routing", name) for name in ("single", "ecmp")]
    slower = {job["name"]: s for job, s in zip(jobs, (1.0, 1.1, 3.0, 1.2, 0.5, 1.0), strict=True)}
    text, _ = said([(jobs, [routings[0]], dict.fromkeys(slower, 1.0)), (jobs, [routings[1]], slower)])
    told = text[text.index("Of the jobs, ") :].replace(f" {SAME}", "").replace(ONCE, "").removesuffix(".").split("; ")
    assert told[::2] == [f"{'Of the jobs, ' * (at == 0)}job{at} takes 1,000 ms at single" for at in range(6)]
    assert [one.rpartition(", ")[2] for one in told[1::2]] == [
        *("as long", "10.0 % longer", "200.0 % longer", "20.0 % longer", "50.0 % less", "as long")
    ]


def test_of_more_jobs_the_one_that_is_slowed_most_is_told_and_the_others_are_counted():
    jobs = many(7)
    routings = [Value("fabric.routing", name) for name in ("single", "ecmp")]
    slower = {job["name"]: s for job, s in zip(jobs, (1.0, 1.1, 3.0, 1.2, 0.5, 1.0, 1.0), strict=True)}
    text, _ = said([(jobs, [routings[0]], dict.fromkeys(slower, 1.0)), (jobs, [routings[1]], slower)])
    told = text[text.index("Of the jobs, ") :]
    assert told.startswith("Of the jobs, job2 takes 1,000 ms at single; 3,000 ms at ecmp, 200.0 % longer")
    assert told.endswith("; the 6 other jobs take at most 20.0 % longer.") and not re.search("job[013456]", told)


def test_a_swept_class_is_compared_by_every_job():
    """A training job beside five gathers, in a class or in none: the class gains what it costs the last gather."""
    train, gold = (TRAIN | more for more in ({}, {"class": "gold"}))
    gathers = [{"name": f"gather{at}", "start": f"{20 * at} ms", "ranks": [2, 3, 6, 7]} for at in range(5)]
    apart = {job["name"]: 0.2 for job in gathers}
    text, _ = said(
        [
            ([train], [], {"train": 1.0}),
            ([gathers[0]], [], {"gather0": 0.1}),
            ([train, *gathers], [], {"train": 1.5} | apart),
            ([gold, *gathers], [], {"train": 1.2} | apart | {"gather4": 0.3}),
        ]
    )
    text = text.replace(ONCE, "")
    assert (
        "train takes 1,000 ms without class alone; 1,500 ms without class beside 5 others, 50.0 % longer; "
        "1,200 ms with class gold beside 5 others, 20.0 % longer and 20.0 % less than without class; gather0" in text
    )
    assert (
        "gather0 takes 100 ms alone; 200 ms beside train without class + 4 others, 100.0 % longer; "
        "200 ms beside train class gold + 4 others, 100.0 % longer and as long as beside train without class" in text
    )
    assert text.endswith(
        "; gather4 takes 200 ms beside train without class; 300 ms beside train class gold, 50.0 % longer."
    )


@pytest.mark.parametrize("seeds", [1, 3])
def test_one_draw_of_the_hash_that_puts_tenants_on_links_is_told(seeds):
    cases = [
        (jobs, [Value("fabric.hash_seed", f"hash seed {seed}")], {job["name"]: 1.0 for job in jobs})
        for seed in range(seeds)
        for jobs in ([TRAIN], [TRAIN, infer()])
    ]
    doubt = "; one draw of ECMP's hash (fabric.hash_seed) decides which jobs share links"
    assert (doubt in said(cases, hashed=("base",))[0]) is (seeds == 1)
    assert doubt not in said(cases)[0]


def test_where_a_job_has_many_times_the_one_asked_about_is_told_and_each_other_has_a_clause():
    """Five rates of a class: of the job in that class all times are told, of the other one their range."""
    other = {"name": "other", "ranks": [2, 6]}
    cases = [
        ([TRAIN | {"class": f"c{at}"}, other], [], {"train": 1.0 + at / 100, "other": 1.0 + at / 10}) for at in range(5)
    ]
    text = said(cases)[0].replace(ONCE, "")
    assert "train takes 1,000 ms with class c0; 1,010 ms with class c1, 1.0 % longer; 1,020" in text
    assert text.endswith("; other takes 1,000 to 1,400 ms, at most 40.0 % longer, beside train class c4.")


@pytest.mark.parametrize("modes", [("base", "wan"), ("base", "ccl", "wan")])
def test_with_two_modes_the_jobs_are_told_in_each(modes):
    settings, times, of_jobs = [], {}, {}
    for index, jobs in enumerate(([TRAIN], [TRAIN, infer()])):
        at = (Value("job", all_words_of(jobs)),)
        about = {"label": "8 GPUs", "kind": "jobs", "at": at, "modes": modes, "baseline": {}, "jobs": tuple(jobs)}
        settings.append(Setting(index=index, **about))
        for number, mode in enumerate(modes):
            place = ("model", Place(index, mode))
            times[place] = Series(np.arange(400), (2 + index - number / 2) * luck(7))
            of_jobs[place] = {job["name"]: times[place] for job in jobs}
    text = answer(settings, times, of_jobs)
    assert "wan is fastest at both" in text
    parts = ". Of the jobs, in base train takes 2,000 ms alone; 3,000 ms beside infer, 50.0 % longer", "; in wan train"
    assert all((part in text) is (len(modes) == 2) for part in parts)
    across = "; in wan train takes 1,500 ms alone, 25.0 % less than in base; 2,500 ms"
    assert (across in text) is (len(modes) == 2)


@pytest.mark.parametrize(
    ("jobs", "words"),
    [
        ([[TRAIN], [TRAIN, infer()]], ["train alone", "train + infer"]),
        ([[TRAIN, infer(start="1 ms")], [TRAIN, infer()]], ["train + infer from 1 ms", "train + infer from the start"]),
        ([[TRAIN, infer()], [infer(), TRAIN]], ["train + infer", "infer + train"]),
        ([[TRAIN | {"ranks": [0, 1, 2, 3, 8]}], [TRAIN]], ["train on GPUs 0-3,8", "train on GPUs 0,1,4,5"]),
        ([[infer(count=2)], [infer()]], ["infer 2 times", "infer once"]),
    ],
)
def test_configurations_are_told_apart_by_what_differs(jobs, words):
    assert told_apart(jobs) == words
    assert not any(re.search(r", |#", one) for one in words)


def test_how_often_a_job_repeats_and_for_how_long_others_run_beside_it_are_told():
    """The two start 300 ms apart: "late" runs from 300 to 500 ms, which is 200 of the first one's 800 ms."""
    first = {"name": "first", "kind": "allreduce", "size": "64 MB", "count": 10, "ranks": [0, 4]}
    late = {"name": "late", "size": "1 MB", "count": 3, "start": "300 ms", "ranks": [1, 5]}
    text, _ = said([([first], [], {"first": 0.5}), ([first, late], [], {"first": 0.8, "late": 0.2})])
    assert (
        "first (10 AllReduces) takes 500 ms alone; 800 ms beside late (late runs for 25 % of this time), 60.0" in text
    )
    assert text.endswith("; late (3 repetitions) takes 200 ms.")


def test_for_how_long_another_job_runs_beside_repetitions_that_begin_every_so_often_is_told():
    """Of 20 repetitions of 10 ms each, once in 15 ms, the first two and 4 ms of the third are within the training's 34
    ms: 24 of 200 ms. The training has 24 of its 34 ms beside them."""
    train, small = TRAIN | {"count": 2}, infer(size="4 MB", count=20, every="15 ms")
    alone = [([train], [], {"train": 0.03}), ([small], [], {"infer": 0.01})]
    text, _ = said([*alone, ([train, small], [], {"train": 0.034, "infer": 0.01})])
    assert "34 ms beside infer (infer runs for about 71 % of this time), 13.3 % longer" in text
    assert "10 ms beside train (train runs for about 12 % of this time), as long" in text
    # Repetitions that take longer than 15 ms follow each other: from 0 to 19 x 15 + 20 ms.
    text, _ = said([*alone, ([train, small], [], {"train": 0.0305, "infer": 0.02})])
    assert "30.5 ms beside infer, 1.7 % longer" in text
    assert "20 ms beside train (train runs for about 10 % of this time), 100.0 % longer" in text


def test_means_that_are_equal_by_luck_are_told_with_their_interval():
    place, number = [("model", Place(at, "base")) for at in (0, 1)], np.arange(400)
    settings = [
        Setting(
            index=at,
            label="8 GPUs",
            kind="jobs",
            at=(Value("job", f"jobs {at}"),),
            modes=("base",),
            baseline={},
            jobs=jobs,
        )
        for at, jobs in enumerate([(TRAIN,), (TRAIN, infer())])
    ]
    of_jobs = {place[0]: {"train": Series(number, luck(7))}, place[1]: {"train": Series(number, luck(7)[::-1])}}
    text = answer(settings, {at: one["train"] for at, one in of_jobs.items()}, of_jobs)
    assert re.search(r"1,000 ms beside infer, as long on average \(95 % interval -\d\.\d to \d\.\d %\)\.$", text)


CHAT = {"name": "chat", "kind": "requests", "requests": 400, "per_second": 1, "ranks": [0, 1, 4, 5]}


def test_of_requests_the_varied_job_is_compared_and_a_rate_told_where_a_rule_asks_for_it():
    """Nine times are too many to tell: those of the job that changes are told. Its rule and that rule's rate are
    choices: the requests are the same."""
    tick = {"name": "tick", "kind": "sendrecv", "ranks": [0, 4]}
    cases = []
    for number in range(1, 5):
        for rule, slow in (({"rule": "local"}, 2.0), ({"rule": "selective", "rate": "50 Gbit/s"}, 1.0)):
            chat = CHAT | rule | {"per_second": number}
            cases.append(([chat, tick], [], {"chat": number * slow, "tick": 5.0}))
    text, _ = said(cases)
    assert "chat (percentile 99 of first tokens) takes 2,000 ms with 1 a second local; 1,000 ms with 1 a second" in text
    assert "1,000 ms with 1 a second selective 50 Gbit/s, 50.0 % less; 4,000 ms with 2 a second local; " in text
    assert text.endswith(f"; tick takes 5,000 ms{ONCE}.") and "default" not in text


def test_rounds_of_requests_alone_are_told_by_their_first_tokens():
    """A round that sends little ends before its first tokens are there."""
    settings = [
        Setting(index=0, label="8 GPUs", kind="jobs", at=(), modes=("base", "wan"), baseline={}, jobs=(CHAT,)),
    ]
    times, of_jobs = {}, {}
    for mode, first_s in (("base", 0.4), ("wan", 0.3)):
        place = ("model", Place(0, mode))
        times[place] = Series(np.arange(400), 0.1 * luck(7))
        of_jobs[place] = {"chat": Series(np.arange(400), first_s * luck(7))}
    assert answer(settings, times, of_jobs) == (
        "chat over 400 rounds (timing model), 8 GPUs: in base chat (percentile 99 of first tokens) takes 400 ms; in "
        f"wan chat (percentile 99 of first tokens) takes 300 ms, 25.0 % less {SAME} than in base."
    )


GOLD, BULK = {"name": "gold", "priority": 0, "ceiling": 0.5}, {"name": "bulk", "priority": 1, "share": 0.3}


@pytest.mark.parametrize(
    ("classes", "said", "told"),
    [
        (["", "gold"], "", "Class: gold (priority 0, at most 50 %)."),
        (["bulk", "gold"], "", "Classes: bulk (priority 1, 30 % assured); gold (priority 0, at most 50 %)."),
        (["bulk", "gold"], "infer, class gold (priority 0) at most 50 %", "Class: bulk (priority 1, 30 % assured)."),
        (["gold", "gold"], "", ""),  # no class is compared
        (["", ""], "", ""),
    ],
)
def test_classes_that_are_compared_have_their_priority_share_and_ceiling(classes, said, told):
    jobs = [[{"name": "infer"} | ({"class": name} if name else {})] for name in classes]
    assert classes_sentence([(one, [GOLD, BULK]) for one in jobs], said) == told


def test_the_answer_and_the_figure_of_jobs_tell_what_classes_are(tmp_path):
    """And "as long" beside another comparison says as what."""
    job = '{ name = "infer", ranks = [0, 4], size = "256 kB"%s }'
    train = '{ name = "train", ranks = [1, 5], size = "64 MB" }'
    sweep = [job % "", f"{job % ''}, {train}", (job % ', class = "gold"') + f", {train}"]
    (tmp_path / "mine.toml").write_text(
        '[conditions]\nwan_rate = "25 Gbit/s"\nintra_rate = "100 Gbit/s"\n[collective]\ncount = 3\n[run]\n'
        'modes = ["base"]\n[[class]]\nname = "gold"\npriority = 0\n[sweep]\n'
        f"job = [{', '.join(f'[{one}]' for one in sweep)}]\n"
    )
    found = runs.answer(tmp_path / "out", "mine.toml", "--engine", "model", report=True)["answer"]
    assert found.endswith("Class: gold (priority 0).") and "as long as without class alone and" in found
    drawn = (tmp_path / "out/figures/mine-jobs.svg").read_text()
    assert drawn.count("Class: gold (priority 0).") >= 2  # in its caption, and in the figure


@pytest.mark.parametrize("is_drawn", [False, True])
def test_where_nothing_is_drawn_each_time_has_that_of_the_other_engine_beside_it(is_drawn):
    """Two rounds are measured and 100 predicted: under drawn rates they are other rounds, and not comparable."""
    jobs = [infer(class_=name) for name in ("gold", "bronze")]
    settings = [
        Setting(index=index, label="8 GPUs", kind="jobs", at=(Value("job", all_words_of([job, TRAIN])),),
                modes=("base",), baseline={}, jobs=(job, TRAIN))
        for index, job in enumerate(jobs)
    ]  # fmt: skip
    means = {"model": [0.0632, 0.0644], "emulation": [0.06341, 0.06476]}
    of_jobs, times = {}, {}
    for engine, count in (("model", 100), ("emulation", 2)):
        for index, mean in enumerate(means[engine]):
            place = (engine, Place(index, "base"))
            times[place] = Series(np.arange(count), np.full(count, 0.3), exact=not is_drawn)
            own = Series(np.arange(count), mean * (1 + 1e-5 * np.arange(count) / count), exact=not is_drawn)
            of_jobs[place] = {"infer": own, "train": times[place]}
    told = answer(settings, times, of_jobs)
    assert "over 100 rounds each (timing model)" in told
    both = "infer takes 63.2 ms (measured 63.41) with class gold; 64.4 ms (measured 64.76) with class bronze"
    assert (both in told) == ("(measured" in told) == (not is_drawn)


@pytest.mark.parametrize("is_noisy", [False, True])
def test_many_differences_that_all_collectives_have_are_said_to_be_so_once(is_noisy):
    """Beside a difference that varies, which has an interval of its own."""
    sizes = [f"{mb} MB" for mb in (1, 2, 4, 8)]
    cases = [([TRAIN], [], {"train": 1.0})]
    cases += [([TRAIN, infer(size=size)], [], {"train": 1 + at / 8, "infer": 0.1}) for at, size in enumerate(sizes, 1)]
    if is_noisy:
        cases.append(([TRAIN, infer(size="16 MB")], [], {"train": 2 + luck(3), "infer": 0.1}))
    text = said(cases)[0]
    which = "those without an interval" if is_noisy else "all differences"
    assert text.endswith(f" ({which} are the same in every collective).") and text.count("in every collective") == 1
    assert "12.5 % longer; " in text and text.count("95 % interval") == is_noisy
