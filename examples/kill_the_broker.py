"""The demo: a broker, real traffic by an ordinary client, a SIGKILL in the middle, and the count afterwards.

It starts `tidemark serve` on a free port with an embedded store in a temporary folder, publishes numbered
orders with publisher confirms while a worker consumes and acknowledges them, kills the broker without
warning half-way, starts it again on the same data, goes on, and compares what was confirmed with what was
received. Everything is stopped and removed at the end.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pika
from pika.exceptions import AMQPError

ORDERS = 20_000
KILL_AFTER = 8_000


class Broker:
    """One `tidemark serve`, which can be killed and started again on the same port and data."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self.port = 0
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "tidemark", "serve", "--data", str(self._data)]
        command += ["--amqp", f"127.0.0.1:{self.port}", "--admin", "127.0.0.1:0"]
        with (self._data.parent / "broker.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self._process.stdout is not None
        ready = self._process.stdout.readline().strip()
        if not ready:
            raise SystemExit((self._data.parent / "broker.log").read_text())
        facts = dict(word.split("=", 1) for word in ready.split() if "=" in word)
        self.port = int(facts["amqp"].rpartition(":")[2])
        print(f"  {ready}")

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        self._process.terminate()
        code = self._process.wait(timeout=30)
        print(f"  stopped cleanly (exit {code})")

    def connect(self) -> pika.BlockingConnection:
        for attempt in range(100):
            try:
                return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", self.port))
            except (AMQPError, OSError):
                if attempt == 99:
                    raise
                time.sleep(0.1)
        raise AssertionError


class Worker(threading.Thread):
    """Consumes `orders`, acknowledges each, and notes what it has seen. Reconnects when it must."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(daemon=True)
        self._broker = broker
        self.seen: set[int] = set()
        self.redelivered = 0
        self.done = threading.Event()

    def run(self) -> None:
        while not self.done.is_set():
            try:
                channel = self._broker.connect().channel()
                channel.basic_qos(prefetch_count=500)
                for method, _, body in channel.consume("orders", inactivity_timeout=0.2):
                    if self.done.is_set():
                        break
                    if method is None:
                        continue
                    assert body is not None
                    self.redelivered += int(body) in self.seen
                    self.seen.add(int(body))
                    channel.basic_ack(method.delivery_tag)
                channel.connection.close()
            except (AMQPError, OSError):
                time.sleep(0.05)


def publish(broker: Broker, orders: range, confirmed: set[int]) -> None:
    """Publish with confirms until all of `orders` are confirmed; what fails is sent again."""
    pending = list(orders)
    while pending:
        try:
            channel = broker.connect().channel()
            channel.queue_declare("orders", durable=True)
            channel.confirm_delivery()
            while pending:
                order = pending[0]
                channel.basic_publish(
                    "", "orders", str(order).encode(), pika.BasicProperties(delivery_mode=2), mandatory=True
                )
                confirmed.add(pending.pop(0))
                if order == KILL_AFTER:
                    print(f"  {len(confirmed):,} confirmed … SIGKILL to the broker, without warning")
                    broker.kill()
                elif len(confirmed) % 4000 == 0:
                    print(f"  {len(confirmed):,} confirmed")
            channel.connection.close()
        except (AMQPError, OSError):
            print("  the broker is gone; starting it again on the same data")
            broker.start()


def main() -> int:
    # Two busy threads share one interpreter here; with the usual 5 ms a turn they would mostly wait for it.
    sys.setswitchinterval(0.0002)
    with tempfile.TemporaryDirectory(prefix="tidemark-demo-") as folder:
        print("Starting a broker with an embedded store in a temporary folder")
        broker = Broker(Path(folder) / "data")
        confirmed: set[int] = set()
        try:
            setup = broker.connect()
            setup.channel().queue_declare("orders", durable=True)
            setup.close()
            worker = Worker(broker)
            worker.start()
            print(
                f"Publishing {ORDERS:,} persistent orders with pika, each one confirmed; a worker consumes them"
            )
            began = time.monotonic()
            publish(broker, range(1, ORDERS + 1), confirmed)
            took = time.monotonic() - began
            waited = time.monotonic() + 30
            while not confirmed <= worker.seen and time.monotonic() < waited:
                time.sleep(0.05)
            worker.done.set()
            worker.join()
        finally:
            broker.stop()
        lost = confirmed - worker.seen
        print(
            f"\n  confirmed {len(confirmed):>8,}   received {len(worker.seen & confirmed):>8,}   lost {len(lost):,}"
        )
        print(f"  delivered twice after the kill: {worker.redelivered:,} (acks that were on their way)")
        print(f"  {len(confirmed) / took:,.0f} confirmed orders a second, one at a time, the kill included")
        return 0 if not lost and len(confirmed) == ORDERS else 1


if __name__ == "__main__":
    sys.exit(main())
