"""Streams in a minute: put, revise, delete, read a frozen view, follow what changes.

python examples/streams/quickstart.py [tidemark://guest:guest@127.0.0.1:5672/]
"""

from __future__ import annotations

import sys

import tidemark.client

URL = sys.argv[1] if len(sys.argv) > 1 else "tidemark://guest:guest@127.0.0.1:5672/"

with tidemark.client.connect(URL) as db:
    orders = db.stream("quickstart-orders", create=True)

    orders.put("o-1", b"new")
    orders.put("o-2", b"new")
    receipt = orders.put("o-1", b"paid")  # the newer version of a key replaces the older one
    orders.delete("o-2")
    print(f"paid: sequence {receipt.sequence}, safe on this disk: {db.await_safe(receipt)}")

    with orders.snapshot() as snapshot:  # frozen: what is put meanwhile does not show up in it
        orders.put("o-3", b"new")
        for row in snapshot:
            print(f"  {row.key!r:8} {'deleted' if row.deleted else row.value.decode()}")
        marker = snapshot.marker
        assert marker is not None and marker.verified
        print(f"snapshot of {marker.count} orders, hash {marker.hash}")

    # The same consumer name later, or in another process, goes on where this loop ends.
    for batch in orders.follow("quickstart-printer", idle=0.5):
        for row in batch:
            print(f"  seen {row.key!r} at {row.sequence}")
        if batch.marker:
            print(f"  consistent up to {batch.marker.end}")

    db.delete_stream("quickstart-orders")
