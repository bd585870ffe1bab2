"""When rings and paths are chosen anew, and which."""
