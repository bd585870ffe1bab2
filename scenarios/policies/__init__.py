"""Policies: when placement and WAN paths are chosen again, and how they are chosen."""
