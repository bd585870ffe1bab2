"""Programs that papers run on the ranks' hosts."""
