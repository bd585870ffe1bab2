"""Papers: each module repeats a figure that others have published. `run.py papers` (`scenarios.studies.papers`) runs
them."""
