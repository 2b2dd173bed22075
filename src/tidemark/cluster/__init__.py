"""How a cluster keeps a group of queues safe: one interface (`mode.py`), one folder a mode."""
