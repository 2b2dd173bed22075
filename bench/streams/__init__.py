"""The cases about streams: the broker over its stream protocol, its inner loops, and the peers."""
