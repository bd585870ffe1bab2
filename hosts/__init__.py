"""What runs on the GPUs: ring embeddings, schedules, agents and the communicator."""
