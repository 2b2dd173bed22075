"""VALUES. Records and the arena they lie in, runs of messages, wiring, typed values, settings. Imports only errors."""
