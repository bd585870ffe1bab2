"""A run from the command line: its options, its run folder, its progress and its results."""
