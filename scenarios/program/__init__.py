"""A user's own program on the GPUs' hosts: `session` runs it from outside the VM, `inside` within it."""
