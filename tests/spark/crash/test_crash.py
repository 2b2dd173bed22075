"""A whole pipeline, its processes killed at random moments while keys churn, and every promise checked.

One driver with four sinks (PostgreSQL, Redis, DuckDB, another stream), a broker, the servers of the sinks: all are real
processes. Each kill point gives SIGKILL to one of them: the driver's process group, one of Spark's Python processes
(worker, daemon or planner), the broker, PostgreSQL, Redis. What was killed is started again on the same data (Spark's
Python processes by Spark), and every sink must reach what was confirmed before that. One point stops a driver with
SIGSTOP and starts a second one, with checkpoints of its own, beside it: a zombie that wakes up and goes on writing.

After each point: every sink that can be read beside the driver equals the model at its mark; after the death of the driver, before
anybody mends anything, all four do. At the end: each batch id has had one content, no version of a key was put twice, and
`tidemark pipeline verify` says the same.

TIDEMARK_CRASH_KILLS says how many points (21 unless told), TIDEMARK_CRASH_SEED repeats the dice of a run; the seed is printed.
Planted faults show that the checks can fail: `audited.py` has sinks, and `planted/` a source, that are wrong in one point each.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from helpers.broker import SOURCE
from helpers.postgres import PostgresProcess, find_binaries
from helpers.redis import PROGRAM as REDIS
from helpers.redis import RedisProcess
from spark.crash import readers
from spark.crash.model import Audit, Held, Model, Seen, check_once
from spark.crash.processes import SETTINGS, TESTS, Churn, Driver

import tidemark.client

if TYPE_CHECKING:
    from spark.conftest import SparkBroker

KILLS = int(os.environ.get("TIDEMARK_CRASH_KILLS", "21"))
SEED = int(os.environ.get("TIDEMARK_CRASH_SEED", str(random.SystemRandom().randrange(1 << 32))))
DECK = {"driver": 3, "zombie": 1, "worker": 6, "broker": 4, "postgres": 4, "redis": 3}
"""Of 21 points. Starting Spark takes longest, so it is not killed most."""
PLANTED_KILLS = 12
RECOVERY_S = 150.0
KEYS = 1500

needs_servers = pytest.mark.skipif(
    find_binaries() is None or REDIS is None, reason="PostgreSQL or Redis is not installed"
)

PIPELINE = """
[pipeline]
name = "crash"
state = "{state}"
trigger = "300 ms"
max_rows_per_batch = 600

[source.orders]
url = "{broker}"
stream = "orders"
schema = "customer STRING, number BIGINT, status STRING"

[[transform]]
name = "open_orders"
sql = "SELECT _key, _sequence, customer, number FROM orders WHERE status <> 'cancelled'"

[dead_letter]
stream = "rejected"
"""
SINK = """
[[sink]]
name = "{name}"
kind = "{kind}"
from = "open_orders"
{options}
"""
PLANTED = Path(__file__).with_name("planted")
COPY = "copy"
PREFIX = "order:"
AUDITED = {
    "postgres": "spark.crash.audited:AuditedPostgres",
    "redis": "spark.crash.audited:AuditedRedis",
    "duckdb": "spark.crash.audited:AuditedDuckDB",
    "stream": "spark.crash.audited:AuditedStream",
}


class World:
    """All processes, and what is known of them."""

    def __init__(
        self,
        folder: Path,
        broker: SparkBroker,
        dice: random.Random,
        kinds: Mapping[str, str] = AUDITED,
        paths: tuple[Path, ...] = (),
    ) -> None:
        self.folder, self.broker, self.dice = folder, broker, dice
        self.kinds, self.paths = kinds, paths
        self.postgres = PostgresProcess()
        self.redis = RedisProcess(folder / "redis")
        self.model = Model()
        self.audit = Audit(folder / "audit.jsonl")
        self.drivers: list[Driver] = []
        self.victims: Counter[str] = Counter()
        self.checked: Counter[str] = Counter()

    def start(self) -> None:
        self.postgres.start()
        with psycopg.connect(self.postgres.url) as db:
            db.execute(readers.POSTGRES_SETUP)
        self.redis.start()
        self.db = tidemark.client.connect(self.broker.url, timeout=40)
        self.db.stream("orders", create=True, shards=2)
        self.churn = Churn(
            self.broker.url, "orders", self.model, random.Random(self.dice.random()), keys=KEYS
        )
        self.churn.start()
        self.file = self.a_file("a")
        self.start_driver()

    def close(self) -> None:
        for driver in self.drivers:
            driver.close()
        if hasattr(self, "churn"):
            self.churn._stop.set()
        if hasattr(self, "db"):
            self.db.close()
        self.postgres.close()
        self.redis.close()

    def a_file(self, state: str) -> Path:
        options = {
            "postgres": f'url = "{self.postgres.url}"\ntable = "orders"',
            "redis": f'url = "{self.redis.url}"\nprefix = "{PREFIX}"',
            "duckdb": 'path = "warehouse.duckdb"\ntable = "orders"',
            "stream": f'url = "{self.broker.url}"\nstream = "{COPY}"',
        }
        text = PIPELINE.format(state=f"state-{state}", broker=self.broker.url)
        for name, kind in self.kinds.items():
            text += SINK.format(name=name, kind=kind, options=options[name])
        path = self.folder / f"{state}.toml"
        path.write_text(text)
        return path

    # Kill points ----------------------------------------------------------------------------------------

    @property
    def driver(self) -> Driver:
        return self.drivers[-1]

    def start_driver(self) -> None:
        self.drivers.append(Driver(self.file, self.audit._path, paths=self.paths))

    def aim(self, sink: str) -> None:
        """Wait for a moment: mostly while a batch is being applied, or just after, to this sink or any."""
        time.sleep(self.dice.uniform(0, 0.5))
        if self.dice.random() < 0.3:
            return
        end = time.monotonic() + 5
        self.audit.look()
        while time.monotonic() < end:
            begun = [line["sink"] for line in self.audit.look() if "applied" not in line]
            if sink in begun or (begun and sink not in self.kinds):
                break
            time.sleep(0.001)
        time.sleep(self.dice.choice((self.dice.uniform(0, 0.02), self.dice.uniform(0.02, 0.3))))

    def strike(self, kind: str) -> str:
        """Kill one, and start what does not start by itself; who it was."""
        self.aim({"broker": "stream"}.get(kind, kind))
        match kind:
            case "driver":
                self.driver.kill()
                self.check_sinks(alone=True)
                self.start_driver()
            case "zombie":
                return self.raise_a_zombie()
            case "worker":
                workers = self.driver.workers()
                assert workers, "Spark has no Python processes"
                victim = self.dice.choice(sorted(workers))
                os.kill(victim, signal.SIGKILL)
                return workers[victim]
            case "broker":
                self.broker.kill()
                time.sleep(self.dice.uniform(0, 1.0))
                self.broker.start()
            case "postgres":
                self.postgres.kill()
                time.sleep(self.dice.uniform(0, 1.0))
                start_patiently(self.postgres)
            case "redis":
                self.redis.kill()
                time.sleep(self.dice.uniform(0, 1.0))
                self.redis.start()
        return kind

    def raise_a_zombie(self) -> str:
        """A driver stands still for so long that another one is started, which has no checkpoint; then it goes on."""
        zombie = self.driver
        zombie.pause()
        self.file = self.a_file(f"z{len(self.drivers)}")
        self.start_driver()
        # What the zombie has locked nobody else can write: DuckDB's file, perhaps the mark in PostgreSQL.
        self.await_boundary(self.model.head, ("redis", "stream"), (self.driver.pid,), failures=False)
        zombie.resume()
        time.sleep(self.dice.uniform(1.0, 4.0))
        self.check_sinks(alone=False)
        zombie.close()
        return "zombie"

    def recover(self) -> float:
        """Everything that is confirmed by now gets into all sinks, which then are as they must be; how long it took."""
        took = self.await_boundary(self.model.head)
        self.check_sinks(alone=False)
        return took

    # Checks ---------------------------------------------------------------------------------------------

    def await_boundary(
        self,
        sequence: int,
        sinks: tuple[str, ...] | None = None,
        pids: tuple[int, ...] | None = None,
        failures: bool = True,
    ) -> float:
        """Wait until sinks hold everything up to there; how long that took."""
        began = time.monotonic()
        wanted = tuple(self.kinds) if sinks is None else sinks
        while True:
            held = self.audit.boundaries(pids)
            if all(held.get(sink, 0) >= sequence for sink in wanted):
                return time.monotonic() - began
            self.churn.check()
            if failures:
                self.driver.check()
            waited = time.monotonic() - began
            assert waited < RECOVERY_S, (
                f"after {waited:.0f} s sinks hold {held}, not {sequence}, seed {SEED}: {self.driver.told()}"
            )
            time.sleep(0.1)

    def check_sinks(self, *, alone: bool) -> list[Seen]:
        """What can be read now equals the model; alone, without a driver, that is everything."""
        found = [readers.postgres(self.postgres.url, "postgres")]
        if "redis" in self.kinds:
            found.append(
                readers.redis_cache(self.redis.url, "redis", f"tidemark:mark:crash.redis:{PREFIX}", PREFIX)
            )
        if "stream" in self.kinds:
            found.append(readers.copied(self.db, "stream", COPY, f"crash/stream/{COPY}"))
        if alone and "duckdb" in self.kinds:
            found.append(readers.warehouse(self.folder / "warehouse.duckdb", "duckdb"))
        self.churn.catch_up()
        for one in found:
            self.model.check(one)
            self.checked[f"{one.sink} {'boundary' if one.boundary else 'part'}"] += 1
        self.audit.check()
        check_once("PostgreSQL", readers.postgres_puts(self.postgres.url))
        return found


def start_patiently(server: PostgresProcess) -> None:
    """Processes of the killed server may hold its memory for a moment."""
    for _ in range(50):
        try:
            server.start()
            return
        except AssertionError as error:
            if "ended with" not in str(error):
                raise
            time.sleep(0.1)
    server.start()


def a_plan(kills: int, dice: random.Random) -> list[str]:
    plan: list[str] = []
    while len(plan) < kills:
        deck = [kind for kind, count in DECK.items() for _ in range(count)]
        dice.shuffle(deck)
        plan += deck
    return plan[:kills]


@pytest.fixture
def make_world(
    tmp_path: Path, start_spark_broker: Callable[..., SparkBroker]
) -> Iterator[Callable[..., World]]:
    made: list[World] = []

    def make(*, kinds: Mapping[str, str] = AUDITED, paths: tuple[Path, ...] = ()) -> World:
        world = World(tmp_path, start_spark_broker(), random.Random(SEED), kinds, paths)
        made.append(world)
        world.start()
        return world

    yield make
    for world in made:
        world.close()


@pytest.mark.slow
@pytest.mark.timeout(300 + 60 * KILLS)
@needs_servers
def test_sinks_equal_the_stream_and_nothing_is_applied_twice_whoever_is_killed(
    make_world: Callable[..., World],
) -> None:
    """M1, M2, M3 (sink side), M6, M14."""
    print(f"TIDEMARK_CRASH_SEED={SEED} TIDEMARK_CRASH_KILLS={KILLS}")
    began = time.monotonic()
    world = make_world()
    plan = a_plan(KILLS, world.dice)
    print(f"ready in {world.await_boundary(1):.1f} s")

    for number, kind in enumerate(plan, 1):
        victim = world.strike(kind)
        took = world.recover()
        world.victims[victim] += 1
        print(f"{number:>3} {victim}: all caught up in {took:.1f} s, {time.monotonic() - began:.0f} s so far")

    world.churn.finish()
    took = world.await_boundary(world.model.head)
    assert world.driver.stop() == 0
    found = world.check_sinks(alone=True)
    end = world.model.state(world.model.head)
    assert all(one.boundary and one.rows == end for one in found) and len(found) == 4

    check_letters(world)
    puts = check_once("Redis", readers.redis_puts(world.redis.folder, PREFIX))
    check_pins(world)
    check_by_command(world, end)
    print(
        f"{len(plan)} kills {dict(world.victims)}, {len(world.model)} versions, {world.churn.resent} resent, {len(end)} keys; "
        f"{len(world.audit.lines)} lines of audit, {world.audit.replays()} batches done again, {puts} puts into Redis; "
        f"checked {dict(world.checked)}; {time.monotonic() - began:.0f} s"
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
@needs_servers
@pytest.mark.parametrize(
    ("kind", "paths", "told"),
    [
        ("spark.crash.audited:AuditedEager", (), "were put again|rows, not"),
        ("spark.crash.audited:AuditedPostgres", (PLANTED,), "had several contents"),
    ],
    ids=["a sink that stores its mark afterwards", "a source that does not pin"],
)
def test_a_planted_fault_is_found_within_a_few_kills(
    kind: str, paths: tuple[Path, ...], told: str, make_world: Callable[..., World]
) -> None:
    world = make_world(kinds={"postgres": kind}, paths=paths)
    world.await_boundary(1)

    with pytest.raises(AssertionError, match=told):
        kill_and_recover(world, PLANTED_KILLS)


def kill_and_recover(world: World, times: int) -> None:
    for _ in range(times):
        world.strike("postgres")
        world.recover()


def check_letters(world: World) -> None:
    """Every row that cannot be decoded, and is the newest of its key, is among the dead letters."""
    letters = {row.key: row.value for row in world.db.stream("rejected").snapshot() if not row.deleted}
    bad = {
        f"orders/{key}".encode(): version.value
        for key, (_, version) in world.model.newest().items()
        if version.value is not None and version.value.startswith(b"nonsense")
    }
    assert bad and bad.items() <= letters.items()


def check_pins(world: World) -> None:
    """M1: killed drivers leave no pins behind but that of the last batch of each checkpoint."""
    pins = [pin.name for pin in world.db.stream("orders").pins()]
    queries = {line["query"] for line in world.audit.lines}
    assert len(pins) <= len(queries) + len(world.kinds), pins


def check_by_command(world: World, end: Mapping[str, Held]) -> None:
    """M3: the product's own proof, by count and hash, comes to what the model says."""
    command = [sys.executable, "-m", "tidemark", "pipeline", "verify", str(world.file), "--json", *SETTINGS]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (SOURCE, TESTS)))}
    done = subprocess.run(command, capture_output=True, timeout=RECOVERY_S, env=environment)
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()[-2000:]
    total = sum(
        int.from_bytes(
            hashlib.sha256(held.sequence.to_bytes(8, "little") + key.encode()).digest()[:16], "little"
        )
        for key, held in end.items()
    )
    expected = {sink: ("equal", len(end), f"{total % (1 << 128):032x}") for sink in world.kinds}
    found = json.loads(done.stdout)
    assert {one["sink"]: (one["verdict"], one["rows"], one["hash"]) for one in found} == expected
