"""Studies: each answers one question by a table and a figure, with options of its own. `harness` runs them."""
