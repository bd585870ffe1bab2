"""Embeddings: the choice of a ring, or of a placement of ranks, for given costs between GPUs."""
