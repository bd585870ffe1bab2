"""The prompt: a Mininet prompt on the network of a scenario, with verbs for rings, paths and collectives.

`session` brings the network up and down, `shell` is the prompt, `dialogue` brings its lines into virtual time,
`arguments` reads a line, `testbed` carries it out, `state` is the network at the moment, `text` prints it.
"""
