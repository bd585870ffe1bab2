"""The emulated testbed: network, controller and agents, up on a platform, and the faults that strike them."""
