"""A reimplementation of the public simulator of the paper's authors: its fabric, capacity draws, rings and times.

This model differs from `analysis.model`: it follows a chunk hop by hop, a switch sends on one port at a time, and a
ring is chosen by the sum of its links' times. Nothing else in this project builds on it. `simulator` holds pure
functions; `draws` reads capacities from files or draws them at random.
"""
