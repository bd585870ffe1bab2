"""What a client asks of the controller, over a Unix socket."""
