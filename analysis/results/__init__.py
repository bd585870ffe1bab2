"""Run directories as data: `load` gives a run's rows, `open_run` all of it."""

from analysis.results.reader import ResultsError, Run, load, open_run

__all__ = ["ResultsError", "Run", "load", "open_run"]
