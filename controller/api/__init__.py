"""The controller's requests and replies: protocol, client, and server on a Unix socket."""
