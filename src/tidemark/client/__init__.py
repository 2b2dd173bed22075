"""A client for streams: puts, transactions, snapshots, pins, marks and receipts over the broker's AMQP port.

```python
import tidemark.client

with tidemark.client.connect("tidemark://guest:guest@127.0.0.1:5672/") as db:
    orders = db.stream("orders", create=True)
    orders.put("o-1", b"new")
    for row in orders.snapshot():
        print(row.key, row.value)
```

`connect` is the blocking client (any number of threads), `connect_async` the one for asyncio. Start reading at
`protocol.py` (one connection as a machine), then `operations.py` (what can be asked) and `exchange.py` (what was asked,
and its answers), then either client.
Importing this package is cheap: no broker code, and pyarrow only when Arrow is asked for.
"""

from tidemark.client.aio import AsyncClient, connect_async
from tidemark.client.blocking import Client, Stream, connect
from tidemark.client.errors import (
    ClientClosed,
    ClientError,
    Interrupted,
    MarkerMismatch,
    NotConnected,
    PackageMissing,
    ProducerClash,
    RequestTooLarge,
    TimedOut,
    Unconfirmed,
)
from tidemark.client.partitioned import Partitioned
from tidemark.client.reading import Batch
from tidemark.client.values import Cut, Lag, Mark, Marker, MemberInfo, PinInfo, Receipt, Row, StreamInfo
from tidemark.errors import (
    Conflict,
    HistoryGone,
    LostBranch,
    MemberBehind,
    NotATail,
    NotHere,
    PinExpired,
    StreamElsewhere,
    StreamReset,
)

__all__ = [
    "AsyncClient",
    "Batch",
    "Client",
    "ClientClosed",
    "ClientError",
    "Conflict",
    "Cut",
    "HistoryGone",
    "Interrupted",
    "Lag",
    "LostBranch",
    "Mark",
    "Marker",
    "MarkerMismatch",
    "MemberBehind",
    "MemberInfo",
    "NotATail",
    "NotConnected",
    "NotHere",
    "PackageMissing",
    "Partitioned",
    "PinExpired",
    "PinInfo",
    "ProducerClash",
    "Receipt",
    "RequestTooLarge",
    "Row",
    "Stream",
    "StreamElsewhere",
    "StreamInfo",
    "StreamReset",
    "TimedOut",
    "Unconfirmed",
    "connect",
    "connect_async",
]
