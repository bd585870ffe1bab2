"""Conditions of collectives: the rate and delay of every link or port, drawn from a seed or read from a trace."""
