"""The prompt: a Mininet prompt on the network of a scenario, in real time, with verbs for rings, paths and collectives.

`launch` chooses where the network is, `session` has it up and down, `shell` is the prompt; `grammar` reads what is
typed, `bench` does it, `words` and the other modules say what came of it.
"""
