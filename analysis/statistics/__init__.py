"""What a set of completion times says: intervals, the paper's claims, and the model's fidelity."""
