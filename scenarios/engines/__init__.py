"""The engines that run the points of an experiment: the timing model and the emulation."""

ENGINES = {"model": ("model",), "emulation": ("emulation",), "both": ("model", "emulation")}
"""The engines that run, by the user's choice."""
