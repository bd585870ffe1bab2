"""Paths of packets: choice of WAN paths, next hops at switches, and the link state."""
