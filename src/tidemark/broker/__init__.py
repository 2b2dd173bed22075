"""MACHINE. Routing, queues, dispatch, settlement, transactions, access: what happens to a message and why.

Start at `broker.py` (everything there is) and `session.py` (what one connection may do), then `dispatch.py`
(the end of a turn). The loops that run once a message are in `core.py` and the twins it picks from.
"""
