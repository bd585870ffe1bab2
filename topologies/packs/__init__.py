"""Packs: adapters that read published data of WANs, from where the user has it.

`table` lists them, and finds the one that a scenario names; `published` has what they give. Each pack is one module.
"""
