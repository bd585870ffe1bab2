"""Runs a user's own program on the GPUs' hosts: `session` is the part outside the VM, `guest` the part within it."""
