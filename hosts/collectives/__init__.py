"""Schedules of collectives: which rank sends what to whom, and after what."""
