"""Run folders as data: `load` returns the collectives of a run, `open_run` the whole run."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from analysis.results.reader import ResultsError, Run, load, open_run

__all__ = ["ResultsError", "Run", "load", "open_run"]


def __getattr__(name: str) -> Any:
    """Import the reader, and with it Parquet, at the first use: worker processes of the model need neither."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("analysis.results.reader"), name)
