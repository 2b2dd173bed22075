"""A copy of a stream in memory that is always right, with asyncio.

The copy starts with everything and then follows. It is published (here: printed) only at boundaries, so nobody sees
half of a transaction; deletes arrive as tombstones; after a broken connection the subscription goes on by itself,
and if the copy was away for so long that it missed deletes, it is told to start over.

    python examples/streams/live_cache.py [tidemark://guest:guest@127.0.0.1:5672/]
"""

from __future__ import annotations

import asyncio
import sys

from tidemark.client import AsyncClient, connect_async

URL = sys.argv[1] if len(sys.argv) > 1 else "tidemark://guest:guest@127.0.0.1:5672/"
STREAM = "cache-prices"


class Cache:
    def __init__(self) -> None:
        self.prices: dict[bytes | None, bytes] = {}
        self.boundary = 0

    async def follow(self, db: AsyncClient) -> None:
        prices = await db.stream(STREAM)
        async with prices.follow(idle=1.0, on_reset="restart") as batches:
            async for batch in batches:
                if batch.reset:
                    self.prices.clear()
                for row in batch:
                    if row.deleted:
                        self.prices.pop(row.key, None)
                    else:
                        self.prices[row.key] = row.value
                if batch.marker:
                    self.boundary = batch.marker.end


async def sell(db: AsyncClient) -> None:
    prices = await db.stream(STREAM)
    await asyncio.gather(*(prices.put(f"item-{n}", b"10") for n in range(50)))
    for price in (11, 12, 13):
        async with db.transaction() as tx:  # all items change their price together
            for n in range(50):
                tx.put(STREAM, f"item-{n}", b"%d" % price)
    await prices.delete("item-7")


async def main() -> None:
    async with connect_async(URL) as db:
        await db.stream(STREAM, create=True)
        cache = Cache()
        following = asyncio.create_task(cache.follow(db))
        await sell(db)
        await following

        async with (await db.stream(STREAM)).snapshot() as snapshot:
            truth = {row.key: row.value async for row in snapshot if not row.deleted}
        await db.delete_stream(STREAM)
    print(f"{len(cache.prices)} prices at boundary {cache.boundary}")
    assert cache.prices == truth and set(truth.values()) == {b"13"} and b"item-7" not in truth


asyncio.run(main())
