"""Conditions as Linux traffic control: HTB classes and netem on switch ports, set and read back over netlink."""
