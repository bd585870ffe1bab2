"""Measured rates and delays, as other programs write them, made into a trace or into delays of links.

`readings` has what one measurement is, `tables` and `iperf` read files of them, `links` maps sites to links, and
`series` makes each link's values of them. `__main__` is the command.
"""
