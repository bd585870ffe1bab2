"""Collective communication: schedules, ring embeddings, the communicator and the agents that run on the GPUs' hosts."""
