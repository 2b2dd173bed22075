"""From one stream to another, each order counted once, whatever is killed in between.

The worker reads orders, adds them up per customer, and stores the sums *and its own mark* in one transaction. If it
dies before the transaction, nothing of it happened and the orders come again; if it dies after, the mark is
behind them. This run lets it "die" at random places and compares the result with the truth.

The orders themselves come from a producer with a name: its writes are numbered, so one that had to be sent again
after a broken connection is stored once.

    python examples/streams/exactly_once.py [tidemark://guest:guest@127.0.0.1:5672/]
"""

from __future__ import annotations

import random
import sys
from collections import Counter

import tidemark.client
from tidemark.client import Client

URL = sys.argv[1] if len(sys.argv) > 1 else "tidemark://guest:guest@127.0.0.1:5672/"
ORDERS, SUMS, WORKER = "once-orders", "once-sums", "once-worker"
dice = random.Random(7)


class Died(Exception):
    """The worker's process is gone."""


def work(db: Client) -> None:
    sums = db.stream(SUMS)
    for batch in db.stream(ORDERS).follow(WORKER, commit=None, idle=0.3):
        ordered: Counter[bytes] = Counter()
        for row in batch:
            customer, amount = row.value.split(b":")
            ordered[customer] += int(amount)
        if dice.random() < 0.3:
            raise Died  # before: as if this batch had never been read
        if not ordered:
            continue
        with db.transaction() as tx:
            for customer, amount in ordered.items():
                before = sums.get(customer)
                tx.put(SUMS, customer, b"%d" % (amount + int(before.value if before else 0)))
            tx.mark(ORDERS, WORKER, batch.position)
        if dice.random() < 0.3:
            raise Died  # after: the mark is behind this batch


def main() -> int:
    truth: Counter[bytes] = Counter()
    with tidemark.client.connect(URL) as db:
        db.stream(ORDERS, create=True, key="none")
        db.stream(SUMS, create=True)
        with db.producer("once-shop") as shop:
            for _ in range(20):
                rows = []
                for _ in range(25):
                    customer, amount = b"customer-%d" % dice.randrange(5), dice.randrange(1, 100)
                    truth[customer] += amount
                    rows.append((None, customer + b":%d" % amount))
                shop.put_many(ORDERS, rows)

    deaths = 0
    while True:
        with tidemark.client.connect(URL) as db:
            try:
                work(db)
                break
            except Died:
                deaths += 1

    with tidemark.client.connect(URL) as db:
        found = {row.key: int(row.value) for row in db.stream(SUMS).snapshot()}
        db.delete_stream(ORDERS)
        db.delete_stream(SUMS)
    print(f"{sum(truth.values())} ordered, {sum(found.values())} counted, the worker died {deaths} times")
    return 0 if found == dict(truth) else 1


if __name__ == "__main__":
    sys.exit(main())
