"""MACHINE. Bytes to protocol events and back, without a socket."""
