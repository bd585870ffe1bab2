"""The conditions of collectives: each logical link's rate and delay, drawn from a seed or read from a trace."""
