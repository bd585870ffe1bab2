"""The agent, the process of one GPU: its launcher, control messages, TCP connections, payload and checks."""
