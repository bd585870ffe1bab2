"""A scenario: every key with its default and range, faults, and TOML in and out."""
