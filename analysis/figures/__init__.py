"""The figures of a stored run, drawn from its tables: `python -m analysis.figures DIR`."""
