"""The tables of a run folder and their columns. A feature that stores something adds a line here, or a table.

Arrays of rows (`rows.Rows`), Parquet files (`schema`), the parts of unfinished runs (`reader`, `writer`) and the
reference in docs/results.md follow from these tables: ``python -m analysis.results.columns`` prints the reference.
This module does not import Parquet, so that a worker starts quickly.
"""

import math
import sys
from typing import NamedTuple

Value = float | int | bool | str | None


class Column(NamedTuple):
    """A column of a table.

    `kind` is one of "float", "int", "int32", "bool", "text", "ranks" for a list of int16, "costs" for a list of what a
    fault cost by collective, and "costs of jobs" for one by job. `otherwise` is the value of collectives for which an
    engine has no such number; None if every engine has one. If the column `is_later`, runs of earlier versions may lack
    it, and get `otherwise` on reading. `meaning` is Markdown for docs/results.md; columns that follow each other and
    have the same meaning share a line there.
    """

    name: str
    kind: str
    meaning: str = ""
    otherwise: Value = None
    is_later: bool = False
    heading: str = ""
    """Above its mean in tables of results, if it is shown there only where it has a value."""


def _later(name: str, kind: str, meaning: str, otherwise: Value = math.nan, heading: str = "") -> Column:
    return Column(name, kind, meaning, otherwise, is_later=True, heading=heading)


_OF_POINT = "the point: `model` or `emulation`, the index of its configuration in `settings.json`, the mode"
_OF_CONFIGURATION = (
    "the keys of the configuration that are varied most often; every other swept key has a column of its own"
)
_OF_REFEREES = (
    "with `run.referees`, otherwise NaN: the model's [best times](#the-best-beside-every-number) under the same "
    "conditions"
)
_PLACED = (
    "the rank at each position of the schedule (of a ring: in ring order), and for each flow (of a ring AllGather: "
    "each ring edge) the index of its WAN path in `settings.json`, -1 within a site"
)
_CHOSEN = "whether the placement (of a ring: the ring) and the paths were chosen again for this collective"
_CHANGED = (
    "emulation: the virtual seconds from before the placement is chosen until the controller has confirmed the paths, "
    "NaN if neither was requested; and the number of OpenFlow messages sent, including those for [paths chosen during "
    "a collective](conditions.md#paths-chosen-while-a-collective-runs); switches apply them within 5 ms, and the "
    "collective begins 20 ms later"
)
_WITHIN = (
    "how often [paths were chosen while it ran](conditions.md#paths-chosen-while-a-collective-runs), and how many of "
    "these choices changed them; 0 in runs of earlier versions"
)
_SLOWNESS = (
    "the smallest and the largest measured/predicted time of its transfers; a transfer's time runs from the moment "
    "when it could start, or when its predecessor on the same flow had arrived if that was later, until it has arrived"
    ": 0 if its data had arrived before, and waited for a lost frame of its predecessor"
)
_FAIRNESS = (
    "Jain's fairness index on the least fair of the links that its transfers shared, and that link: (sum x)² / "
    "(n sum x²) over the n transfers on the link, where x is predicted/measured time, that is a transfer's throughput "
    "over its max-min fair one; 1 if all x are equal, 1/n if one transfer got everything ([Jain, Chiu and Hawe, "
    "DEC-TR-301](https://arxiv.org/abs/cs/9809099)). Empty if no link was shared"
)

POINT = (
    Column("engine", "text", _OF_POINT),
    Column("setting", "int32", _OF_POINT),
    Column("mode", "text", _OF_POINT),
)
"""The first columns of every table but the conditions."""

CONFIGURATION = (
    Column("gpus", "int32", _OF_CONFIGURATION),
    Column("gpus_per_site", "text", _OF_CONFIGURATION),
    Column("chunk_bytes", "int", _OF_CONFIGURATION),
    Column("wan_delay_s", "float", _OF_CONFIGURATION),
    Column("seed", "int", _OF_CONFIGURATION),
)
"""The columns of collectives.parquet that are the same in all rows of a configuration."""

REFEREES = (
    _later("best_ring_s", "float", _OF_REFEREES, heading="fastest ring (ms)"),
    _later("best_ring_bound_s", "float", _OF_REFEREES, heading="bound of rings (ms)"),
    _later("best_schedule_s", "float", _OF_REFEREES, heading="best schedule (ms)"),
    _later("best_schedule_bound_s", "float", _OF_REFEREES, heading="bound of schedules (ms)"),
    _later("best_policy_s", "float", _OF_REFEREES, heading="best policy (ms)"),
)
"""The columns that are computed only if `run.referees` asks for them: of the fastest ring, and a bound that no ring can
beat; the same for schedules of whole blocks; with the best policy that knows all conditions in advance."""

COLLECTIVE = (
    Column("collective", "int", "the collective's number, counted from 0"),
    Column("completion_s", "float", "seconds from the first GPU's start until the last transfer has arrived"),
    Column(
        "predicted_s",
        "float",
        "the model's time under the same conditions; in the model's rows equal to `completion_s`",
        math.nan,
    ),
    _later(
        "bound_s",
        "float",
        "a lower bound on the time of any schedule under the same conditions (a cut-set bound, without faults); where "
        "flows can share links [the lower one](collectives.md#the-table-of-nccl-tests) of two",
    ),
    *REFEREES,
    Column("ring", "ranks", _PLACED),
    Column("paths", "ranks", _PLACED),
    Column("reembedded", "bool", _CHOSEN),
    Column("rerouted", "bool", _CHOSEN),
    Column(
        "drops",
        "int",
        "packets lost anywhere, in runs with faults also [those that links with faults lose, in frames]"
        "(faults.md#the-outcome-of-each-fault)",
        0,
    ),
    Column("late", "bool", "on the wall clock: the machine was too slow for this collective", otherwise=False),
    Column("undisturbed", "bool", "no fault was injected within it, so the model applies", otherwise=True),
    _later("reconfigure_s", "float", _CHANGED),
    _later("reconfigure_messages", "int", _CHANGED, 0),
    _later("rerouted_within", "int", _WITHIN, 0),
    _later("moved_within", "int", _WITHIN, 0),
    _later(
        "retransmitted_bytes",
        "float",
        "the payload bytes that TCP retransmitted; NaN if an earlier version measured them without FIFO queues",
    ),
    _later("quickest_transfer", "float", _SLOWNESS),
    _later("slowest_transfer", "float", _SLOWNESS),
    _later("fairness", "float", _FAIRNESS),
    _later("fairness_link", "text", _FAIRNESS, ""),
)
"""The columns of collectives.parquet that differ between the collectives of a point."""

JOB = (
    Column("collective", "int"),
    Column("job", "text"),
    Column("background", "bool"),
    Column("start_s", "float"),
    Column("completion_s", "float"),
    Column("predicted_s", "float"),
    _later("first_token_p50_s", "float", ""),
    _later("requests_per_s", "float", ""),
)
"""The columns of jobs.parquet. The last two are of jobs of requests, NaN of others."""

FAULT = (
    Column("number", "int32"),
    Column("at_collective", "int"),
    Column("what", "text"),
    Column("detected_s", "float"),
    Column("recovered_s", "float"),
    _later("cost_s", "float", ""),
    _later("cost_collectives", "int", "", 0),
    _later("gained_s", "float", ""),
    _later("lasting_cost_s", "float", ""),
    _later("costs", "costs", "", None),
    _later("jobs", "costs of jobs", "", None),
    _later("as_before", "float", ""),
    _later("until", "float", ""),
    Column("collectives_lost", "int"),
    Column("bytes_again", "int"),
    Column("outcome", "text"),
)
"""The columns of faults.parquet."""

CONDITION = (
    Column("setting", "int32"),
    Column("collective", "int32"),
    Column("link", "int32"),
    Column("rate_bps", "float"),
    Column("delay_s", "float"),
)
"""The columns of conditions.parquet."""

RECORDS = {
    "transfers": (
        Column("collective", "int32"),
        Column("step", "int32"),
        Column("src", "int32"),
        Column("dst", "int32"),
        Column("chunk", "int32"),
        Column("start_s", "float"),
        Column("end_s", "float"),
    ),
    "counters": (
        Column("collective", "int32"),
        Column("link", "int32"),
        Column("since_s", "float"),
        Column("until_s", "float"),
        Column("sent_bytes", "int"),
    ),
    "probes": (
        Column("collective", "int32"),
        Column("src", "int32"),
        Column("dst", "int32"),
        Column("path", "int32"),
        Column("sent_s", "float"),
        Column("arrived_s", "float"),
    ),
}
"""What is recorded within collectives, any number of records each: a table of integers, with times in ns until they are
stored in seconds. The first column is the collective."""

JOBS = "jobs"
OF_PARTS = ("collectives", *RECORDS, JOBS)
"""The tables of which an unfinished run has parts."""


def reference() -> str:
    """Return the table of the columns of collectives.parquet in Markdown."""
    meanings: dict[str, list[str]] = {}
    for column in (*POINT, *CONFIGURATION, *COLLECTIVE):
        meanings.setdefault(column.meaning, []).append(f"`{column.name}`")
    rows = [f"| {', '.join(names)} | {meaning} |" for meaning, names in meanings.items()]
    return "\n".join(["| column | holds |", "| --- | --- |", *rows, ""])


if __name__ == "__main__":
    sys.stdout.write(reference())
