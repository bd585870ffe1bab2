"""The semantics of the paper's authors' public simulator, written anew: its fabric, draws, rings and times.

It is another model than `analysis.model`: of hops, switches that send on one port at a time, and a ring chosen by a sum
of times. Nothing else in this project builds on it. `simulator` is pure; `draws` reads files or draws.
"""
