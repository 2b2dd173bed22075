"""Many users of one client at once, over plain sockets and TLS, against a real broker."""

from __future__ import annotations

import asyncio
import random
import socket
import ssl
import threading
from collections.abc import Iterator

import pytest
from helpers.broker import BrokerProcess
from helpers.certificates import Authority

import tidemark.client
from tidemark.client import Client, NotConnected, connect_async


def use(db: Client, name: str, who: int, problems: list[BaseException]) -> None:
    """Everything at once, in an order of its own; what is read back is what this thread wrote."""
    dice = random.Random(who)
    mine: dict[bytes, bytes] = {}
    prefix = f"{who}-"
    try:
        stream = db.stream(name)
        for step in range(30):
            match dice.choice(["put", "many", "get", "delete", "rows", "arrow", "left"]):
                case "put":
                    key, value = f"{prefix}{dice.randrange(10)}".encode(), bytes(dice.randrange(5000))
                    stream.put(key, value)
                    mine[key] = value
                case "many":
                    rows = {f"{prefix}{n}".encode(): b"%d" % step for n in range(10)}
                    stream.put_many(rows.items())
                    mine |= rows
                case "get" if mine:
                    key = dice.choice(list(mine))
                    row = stream.get(key)
                    assert row is not None and row.value == mine[key]
                case "delete" if mine:
                    key = dice.choice(list(mine))
                    stream.delete(key)
                    del mine[key]
                case "rows":
                    with stream.snapshot() as snapshot:
                        found = {row.key: row.value for row in snapshot if not row.deleted}
                    assert {
                        key: value for key, value in found.items() if key and key.startswith(prefix.encode())
                    } == mine
                case "arrow":
                    with stream.snapshot() as snapshot:
                        table = snapshot.to_arrow(key_from=prefix, key_to=f"{who}.")
                        assert snapshot.marker is not None and snapshot.marker.verified
                    live = {row["key"] for row in table.to_pylist() if not row["deleted"]}
                    assert live == set(mine)
                case "left":
                    for _ in stream.snapshot():
                        break
    except BaseException as problem:
        problems.append(problem)


def run_threads(db: Client, name: str) -> None:
    db.stream(name, create=True, shards=4)
    problems: list[BaseException] = []
    threads = [threading.Thread(target=use, args=(db, name, who, problems)) for who in range(10, 16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert problems == [] and not any(thread.is_alive() for thread in threads)


def test_threads_do_not_mix_up_one_anothers_answers(db: Client, name: str) -> None:
    run_threads(db, name)


def test_a_subscription_in_one_thread_does_not_hold_up_the_others(db: Client, name: str) -> None:
    stream = db.stream(name, create=True, key="none")
    seen: list[bytes] = []

    def follow() -> None:
        for batch in stream.follow(idle=20):
            seen.extend(row.value for row in batch)
            if b"end" in seen:
                return

    following = threading.Thread(target=follow)
    following.start()
    writers = [
        threading.Thread(target=lambda n=n: [stream.put(None, b"%d" % n) for _ in range(20)])
        for n in range(3)
    ]
    for thread in writers:
        thread.start()
    for thread in writers:
        thread.join(30)
    stream.put(None, b"end")
    following.join(20)
    assert not following.is_alive() and len(seen) == 61


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, ssl.SSLContext]]:
    """A broker with TLS: its URL, and a context that trusts it."""
    folder = tmp_path_factory.mktemp("tls")
    authority = Authority.create(folder)
    certificate = authority.issue("localhost")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = BrokerProcess(
        folder / "data", "--amqps", f"127.0.0.1:{port}",
        "--tls.certificate", str(certificate), "--tls.key", str(certificate),
    )  # fmt: skip
    process.start()
    yield (
        f"tidemarks://guest:guest@127.0.0.1:{port}/",
        ssl.create_default_context(cafile=authority.certificate),
    )
    process.stop()


def test_threads_share_a_tls_connection(secure: tuple[str, ssl.SSLContext], name: str) -> None:
    url, context = secure
    with tidemark.client.connect(url, tls=context) as db:
        run_threads(db, name)


def test_the_asyncio_client_speaks_tls(secure: tuple[str, ssl.SSLContext], name: str) -> None:
    url, context = secure

    async def story() -> None:
        async with connect_async(url, tls=context) as db:
            stream = await db.stream(name, create=True)
            await stream.put_many([(f"k{n}", bytes(10_000)) for n in range(300)])
            async with stream.snapshot() as snapshot:
                assert len([row async for row in snapshot]) == 300
                assert (await snapshot.to_arrow()).num_rows == 300

    asyncio.run(story())


def test_a_certificate_that_is_not_trusted_is_refused(secure: tuple[str, ssl.SSLContext]) -> None:
    with pytest.raises(NotConnected, match="certificate verify failed"):
        tidemark.client.connect(secure[0], timeout=1)
