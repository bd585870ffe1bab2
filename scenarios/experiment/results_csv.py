"""The results of a run as CSV, in summary.csv."""

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import count
from typing import Any

from analysis.statistics.fault_costs import FaultResult
from scenarios.experiment.point_results import ConfigResult
from scenarios.experiment.results_json import point_as_json, training_fields


def summary_csv(results: Sequence[ConfigResult]) -> str:
    """Return the points as CSV with the values of the JSON; null is an empty cell.

    The columns of a job NAME are "job.NAME.mean_s", "job.NAME.mean_predicted_s" and, for training, such as
    "job.NAME.bubble_ratio"; the columns of a training run are such as "training.bubble_ratio", and those of a point's
    faults, by their number from 1, such as "fault.1.cost_s", or for one that the scenario does not declare
    "fault.undeclared.1.cost_s". Values by stage are separated by spaces.
    """
    rows: list[dict[str, Any]] = [
        {"setting": result.index}
        | point_as_json(result, point)
        | {
            f"job.{job.name}.{name}": value
            for job in point.jobs
            for name, value in job.as_json().items()
            if name not in ("name", "background")
        }
        | {
            f"fault.{which}.{name}": value
            for which, fault in _numbered(point.faults)
            for name, value in asdict(fault).items()
            if name not in ("costs", "jobs")
        }
        | {
            f"fault.{which}.job.{one['job']}.cost_s": one["cost_s"]
            for which, fault in _numbered(point.faults)
            for one in fault.jobs or ()
        }
        | {f"training.{name}": value for name, value in training_fields(point).get("training", {}).items()}
        for result in results
        for point in result.points
    ]
    text = io.StringIO()
    # Points may differ in columns. A column without a value stays: whoever reads it by name has it in every run.
    columns = list(dict.fromkeys(name for row in rows for name in row))
    table = csv.DictWriter(text, fieldnames=columns, restval="", lineterminator="\n")
    table.writeheader()
    table.writerows(
        {key: " ".join(map(str, cell)) if isinstance(cell, list | tuple) else cell for key, cell in row.items()}
        for row in rows
    )
    return text.getvalue()


def _numbered(faults: Iterable[FaultResult]) -> Iterator[tuple[str, FaultResult]]:
    """Yield faults with what names them: "1" for the first one of the scenario, "undeclared.1" for the first other."""
    undeclared = count(1)
    for one in faults:
        yield (str(one.number) if one.number else f"undeclared.{next(undeclared)}"), one
