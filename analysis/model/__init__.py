"""The timing model: how long a collective takes under given conditions, and a lower bound."""
