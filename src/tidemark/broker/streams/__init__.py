"""Streams: queues that keep. Keys, snapshots, marks, pins, transactions."""
