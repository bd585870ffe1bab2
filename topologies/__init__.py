"""The network: units, the declared fabric, conditions, traffic shaping, and the Mininet network."""
