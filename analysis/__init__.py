"""What the numbers say: the timing model, statistics, figures."""
