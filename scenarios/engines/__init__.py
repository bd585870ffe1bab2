"""The engines that run the points of an experiment: the timing model and the emulation."""
