"""One page about a run: `python -m analysis.report DIR`."""
