"""Programs that studies and papers run on the ranks' hosts."""
