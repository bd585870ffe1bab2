"""The network: units, the declared fabric, conditions, shaping, and the Mininet network."""
