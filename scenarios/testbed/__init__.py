"""The emulated testbed: network, controller and agents, running on a platform, and the injection of faults."""
