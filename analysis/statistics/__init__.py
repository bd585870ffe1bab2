"""Statistics of completion times: confidence intervals, tests of the paper's claims, and the model's fidelity."""
