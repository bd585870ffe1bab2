"""The prompt: Mininet's command line on the network of a scenario, with verbs for rings, paths and collectives.

`session` brings the network up and down, `shell` is the command line, `dialogue` passes typed lines into the VM,
`arguments` parses a line, `testbed` executes it, `state` is a snapshot of the network, and `text` formats the output.
"""
