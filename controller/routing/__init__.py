"""Paths of packets: WAN path choice, next hops of switches, and links that are down."""
