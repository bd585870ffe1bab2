"""A GPU's process: its messages, its connections, the bytes of chunks and their check, and what starts it."""
