"""The timing model: how long a collective takes under given conditions, and what it cannot undercut."""
