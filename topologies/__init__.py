"""What the network is: units, the declared fabric, conditions, and building it."""
