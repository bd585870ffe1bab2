"""Schedules of collectives: the messages between ranks and their dependencies."""
