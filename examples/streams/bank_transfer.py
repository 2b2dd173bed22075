"""Money moves between accounts, and at every boundary the sum is right.

Several writers transfer money at the same time. A transfer is a transaction: both balances change, or none, and
only if nobody changed them since they were read (`expected`). An auditor follows the stream and adds up all
balances at every boundary marker. Between boundaries he may have seen one half of a transfer; at a boundary never.

    python examples/streams/bank_transfer.py [tidemark://guest:guest@127.0.0.1:5672/]
"""

from __future__ import annotations

import random
import sys
import threading

import tidemark.client
from tidemark.client import Client, Conflict

URL = sys.argv[1] if len(sys.argv) > 1 else "tidemark://guest:guest@127.0.0.1:5672/"
STREAM = "bank-accounts"
ACCOUNTS = [f"account-{n:02}" for n in range(20)]
OPENING = 100
TOTAL = OPENING * len(ACCOUNTS)
WRITERS, TRANSFERS = 3, 60


def transfer(db: Client, payer: str, payee: str, amount: int) -> bool:
    """Move money, unless the payer has too little. Tries again when somebody else was faster."""
    accounts = db.stream(STREAM)
    while True:
        have, others = accounts.get(payer), accounts.get(payee)
        assert have is not None and others is not None
        if int(have.value) < amount:
            return False
        try:
            with db.transaction() as tx:
                tx.put(STREAM, payer, b"%d" % (int(have.value) - amount), expected=have.sequence)
                tx.put(STREAM, payee, b"%d" % (int(others.value) + amount), expected=others.sequence)
        except Conflict:
            continue
        return True


def work(seed: int, moved: list[int]) -> None:
    dice = random.Random(seed)
    with tidemark.client.connect(URL) as db:
        for _ in range(TRANSFERS):
            payer, payee = dice.sample(ACCOUNTS, 2)
            moved.append(transfer(db, payer, payee, dice.randint(1, 40)))


def audit(done: threading.Event, sums: list[int]) -> None:
    """Follow until the writers are done and everything they did was seen; the auditor's mark joins the passes."""
    balances: dict[bytes | None, int] = {}
    over = False
    with tidemark.client.connect(URL) as db:
        while not over:
            over = done.is_set()
            for batch in db.stream(STREAM).follow("auditor", idle=0.5):
                for row in batch:
                    balances[row.key] = int(row.value)
                if batch.marker:
                    sums.append(sum(balances.values()))


def main() -> int:
    with tidemark.client.connect(URL) as db:
        accounts = db.stream(STREAM, create=True)
        accounts.put_many((name, b"%d" % OPENING) for name in ACCOUNTS)
        done, sums, moved = threading.Event(), [], []
        auditor = threading.Thread(target=audit, args=(done, sums))
        writers = [threading.Thread(target=work, args=(seed, moved)) for seed in range(WRITERS)]
        for thread in [auditor, *writers]:
            thread.start()
        for thread in writers:
            thread.join()
        done.set()
        auditor.join()

        final = sum(int(row.value) for row in accounts.snapshot())
        db.delete_stream(STREAM)
    print(
        f"{sum(moved)} of {len(moved)} transfers done, {len(sums)} boundaries audited, {final} in all accounts"
    )
    if final != TOTAL or not sums or set(sums) != {TOTAL}:
        print(f"money was made or lost: it should be {TOTAL}, the audits found {sorted(set(sums))}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
