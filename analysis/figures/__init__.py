"""The figures, drawn from stored rows: `python -m analysis.figures DIR`."""
