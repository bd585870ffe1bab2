"""`run.py papers`: list the papers whose figures can be repeated, or repeat some and judge their claims.

A paper is a module of `scenarios.papers` with a `PAPER`, and a line in `PAPERS`. Each takes at most three minutes on
two cores: everything is predicted, and some points are measured.
"""

import argparse
import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from importlib import import_module
from typing import TYPE_CHECKING

from scenarios.experiment.options import MAX_JOBS
from scenarios.studies.harness import Answer, Column, Show, Study, Table, add_output, check_range
from topologies.command_line import CommandParser
from topologies.errors import did_you_mean, format_value

if TYPE_CHECKING:
    from scenarios.papers.paper import Paper

COMMAND = "run.py papers"
_VM_BYTES = 4_000_000_000
PAPERS: Mapping[str, str] = {
    "atlas": "scenarios.papers.atlas",
    "diloco": "scenarios.papers.diloco",
    "followup": "scenarios.papers.followup",
    "long-haul": "scenarios.papers.long_haul",
    "pauses": "scenarios.papers.pauses",
    "placement": "scenarios.papers.placement",
    "prefill": "scenarios.papers.prefill",
    "uno": "scenarios.papers.uno",
}
"""The module of each paper."""
COMMANDS: Mapping[str, str] = {
    "run.py fig4a, fig4b, fig5a, fig5b": "the paper of this testbed's collectives",
    "run.py authors": "its authors' own simulation",
    "run.py geopipe": "GeoPipe, arXiv 2510.12064: a pipeline that is cut between two sites",
    "run.py sizing": "Gherghescu et al., arXiv 2407.12819: tables 2 to 4",
}
"""Papers that have a command of their own."""


def paper(name: str) -> "Paper":
    """Return the paper with this name; raises ValueError."""
    if name not in PAPERS:
        raise ValueError(
            f"unknown paper {format_value(name)}; allowed: {', '.join(PAPERS)}{did_you_mean(name.lower(), PAPERS)}"
        )
    found: Paper = import_module(PAPERS[name]).PAPER
    return found


def _jobs() -> int:
    """Return how many VMs run at a time unless it is told: as many as keep two cores busy, if memory suffices."""
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(1, min(2, len(os.sched_getaffinity(0)), memory_bytes // _VM_BYTES))


def _parser() -> CommandParser:
    parser = CommandParser(prog=COMMAND, description="Repeat a published figure, and judge the paper's claims.")
    parser.add_argument("papers", nargs="*", help=f"of {', '.join(PAPERS)}; without any, papers are listed")
    parser.add_argument("--engine", choices=("model", "both"), default="both", help="model: nothing is measured")
    parser.add_argument(
        "--jobs", type=int, default=_jobs(), metavar="N", help="VMs at a time (default 2, with two cores and 8 GB)"
    )
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="of what is random (default 1)")
    parser.add_argument("--data", metavar="DIR", help="folder of published data that a paper can replay (followup)")
    add_output(parser)
    return parser


def _answer(options: argparse.Namespace, show: Show) -> Answer:
    check_range(options, 1, MAX_JOBS, "jobs")
    check_range(options, 0, 2**63 - 1, "seed")
    names = [*dict.fromkeys(options.papers)]
    if not names:
        if options.figure is not None:
            raise ValueError("--figure: no paper is named; allowed: with the name of a paper")
        return _list()
    for name in names:  # before the first one takes its time
        if not paper(name).reads_data and options.data is not None:
            readers = ", ".join(one for one in PAPERS if paper(one).reads_data)
            raise ValueError(f"--data: {name} reads no data; allowed: with {readers}")
    if len(names) > 1 and options.figure is not None:
        raise ValueError(f"--figure: {len(names)} papers are named; allowed: with one")
    answers = {name: _repeated(name, options, show) for name in names}
    if len(answers) == 1:
        return replace(answers[names[0]], drawn=answers)
    return Answer(
        tables=[table for answer in answers.values() for table in answer.tables],
        as_json=[answer.as_json for answer in answers.values()],
        drawn=answers,
        problems=[problem for answer in answers.values() for problem in answer.problems],
    )


def _repeated(name: str, options: argparse.Namespace, show: Show) -> Answer:
    """Repeat one paper; raises ValueError."""
    from scenarios.papers.paper import Settings, claims_table

    chosen = paper(name)
    settings = Settings(measures=options.engine == "both", jobs=options.jobs, seed=options.seed, data=options.data)
    repeated = chosen.repeat(settings, show)
    if options.figure is not None and repeated.picture is None:
        raise ValueError(f"--figure: {name} has a figure of what was measured alone; allowed: --engine both")
    head = "\n".join([f"{chosen.reference}: {chosen.result}", *(f"Assumed: {one}" for one in chosen.assumed)])
    return Answer(
        tables=[head, *repeated.tables, *([claims_table(repeated.claims)] if repeated.claims else [])],
        as_json={
            **{"paper": chosen.reference, "result": chosen.result, "assumed": list(chosen.assumed)},
            "lines": list(repeated.lines),
            "claims": [asdict(one) | {"verdict": one.verdict, "because": one.why} for one in repeated.claims],
        },
        picture=repeated.picture,
        problems=repeated.problems,
    )


def _list() -> Answer:
    papers = {name: paper(name) for name in PAPERS}
    lines = [(name, one.reference, one.result) for name, one in papers.items()]
    columns = [
        Column[tuple[str, str, str]]("name", lambda line: line[0], left=True),
        Column[tuple[str, str, str]]("paper", lambda line: line[1], left=True),
        Column[tuple[str, str, str]]("what is repeated", lambda line: line[2], left=True),
    ]
    notes = ["", f"{COMMAND} NAME repeats one. Papers with commands of their own:"]
    notes += [f"  {command}: {what}" for command, what in COMMANDS.items()]
    own = [{"name": name, "paper": reference, "result": result} for name, reference, result in lines]
    others = [{"command": command, "result": what} for command, what in COMMANDS.items()]
    return Answer(tables=[Table(columns, lines, notes=notes)], as_json={"papers": own, "commands": others})


STUDY = Study(command=COMMAND, parser=_parser, answer=_answer)
