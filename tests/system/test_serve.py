"""`tidemark serve` as a process: what it prints, how it ends, what it refuses, what a restart keeps."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pika
import pytest
from helpers.amqp import drain, put
from helpers.broker import SOURCE, BrokerProcess
from pika.exceptions import ConnectionBlockedTimeout, ConnectionClosedByBroker

Start = Callable[..., BrokerProcess]


def tidemark(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "tidemark", *arguments],
        env=os.environ | {"PYTHONPATH": str(SOURCE)} | environment,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def connect(broker: BrokerProcess, **options: object) -> pika.BlockingConnection:
    where = broker.address
    return pika.BlockingConnection(pika.ConnectionParameters(where.host, where.port, **options))


def refused(result: subprocess.CompletedProcess[str], code: int, words: str) -> None:
    """It ended with this code and one sentence with these words, and nothing on standard output."""
    assert result.returncode == code, result.stderr
    assert result.stdout == ""
    lines = [line for line in result.stderr.splitlines() if line.startswith("tidemark: ")]
    assert len(lines) == 1, result.stderr
    assert words in lines[0]
    assert "Traceback" not in result.stderr


# What it prints ---------------------------------------------------------------------------


def test_the_ready_line_says_where_it_is_and_is_all_that_is_printed(own_broker: BrokerProcess) -> None:
    line = own_broker.ready_line

    assert re.fullmatch(
        r"tidemark ready name=tidemark amqp=127\.0\.0\.1:\d+ admin=127\.0\.0\.1:\d+ pid=\d+", line
    )
    assert f"pid={own_broker.pid}" in line
    assert own_broker.process is not None
    assert own_broker.process.stdout is not None
    os.set_blocking(own_broker.process.stdout.fileno(), False)
    connect(own_broker).close()
    assert own_broker.process.stdout.read() is None


def test_print_config_shows_every_setting_with_its_origin_and_starts_nothing(tmp_path: Path) -> None:
    file = tmp_path / "tidemark.toml"
    file.write_text('[log]\nlevel = "debug"\n')

    result = tidemark(
        "serve", "--config", str(file), "--amqp", "127.0.0.1:7", "--store.cache-bytes=64MiB", "--print-config",
        "--set", "limits.memory_high=0.5", "--data", str(tmp_path / "data"), TIDEMARK_LISTEN_BACKLOG="17",
    )  # fmt: skip

    origins = dict(re.findall(r"^(\w+ = .*?) +# (.*)$", result.stdout, re.MULTILINE))
    assert result.returncode == 0
    assert origins['level = "debug"'] == f"file {file}"
    assert origins['amqp = "127.0.0.1:7"'] == "--listen.amqp"
    assert origins["backlog = 17"] == "TIDEMARK_LISTEN_BACKLOG"
    assert origins["cache_bytes = 67108864"] == "--store.cache-bytes"
    assert origins["memory_high = 0.5"] == "--limits.memory-high"
    assert origins['admin = "127.0.0.1:15672"'] == "default"
    assert not (tmp_path / "data").exists()


# How it ends ------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_cleanly_with_clients_connected(
    own_broker: BrokerProcess, number: signal.Signals
) -> None:
    connection = connect(own_broker)
    process = own_broker.process
    assert process is not None

    os.kill(own_broker.pid, number)
    with pytest.raises(ConnectionClosedByBroker) as told:
        connection.process_data_events(10)

    assert process.wait(10) == 0
    own_broker.process = None
    assert told.value.reply_code == 320
    assert "state       clean(" in tidemark("store", "status", str(own_broker.data)).stdout
    assert tidemark("store", "check", str(own_broker.data)).returncode == 0


def test_a_client_that_does_not_answer_does_not_hold_up_the_end(own_broker: BrokerProcess) -> None:
    connection = connect(own_broker)
    silent = socket.create_connection((own_broker.address.host, own_broker.address.port))

    began = time.monotonic()
    own_broker.stop()

    assert time.monotonic() - began < 8
    silent.close()
    assert connection.is_open  # it never looked


def test_after_a_kill_the_store_is_dirty_and_sound(own_broker: BrokerProcess) -> None:
    own_broker.kill()

    assert tidemark("store", "status", str(own_broker.data)).stdout.startswith("state       dirty")
    assert tidemark("store", "check", str(own_broker.data)).returncode == 0


# What it refuses --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--amqp", "nonsense"], "listen.amqp: must be HOST:PORT"),
        (
            ["--set", "store.segment_byte=1"],
            "store.segment_byte: unknown setting; did you mean 'segment_bytes'?",
        ),
        (["--set", "store.segment_bytes"], "--set: needs KEY=VALUE"),
        (
            ["--store.segment-byte", "1"],
            "--store.segment-byte: unknown flag; did you mean '--store.segment-bytes'?",
        ),
        (["--log.level"], "--log.level: needs a value"),
        (["--datta", "x"], "--datta: unknown flag; did you mean '--data'?"),
        (["--config", "/nowhere/tidemark.toml"], "cannot be read"),
        (["--log.level", "loud"], "log.level: must be one of"),
        (["--amqps", "127.0.0.1:0"], "tls.certificate: is needed"),
        (["--amqp", "192.0.2.1:5672"], "listen.amqp: cannot listen on 192.0.2.1:5672"),
        (["--amqp", "no.such.host.invalid:5672"], "listen.amqp: cannot listen on"),
    ],
)
def test_a_wrong_setting_is_one_sentence_and_exit_2(tmp_path: Path, arguments: list[str], words: str) -> None:
    base = ["serve", "--data", str(tmp_path / "data"), "--admin", "127.0.0.1:0"]
    refused(tidemark(*base, *arguments), 2, words)


def test_a_certificate_that_is_none_is_one_sentence_and_exit_2(tmp_path: Path) -> None:
    (tmp_path / "cert.pem").write_text("nonsense")
    result = tidemark(
        "serve", "--data", str(tmp_path / "data"), "--amqp", "127.0.0.1:0", "--amqps", "127.0.0.1:0",
        "--tls.certificate", str(tmp_path / "cert.pem"),
    )  # fmt: skip
    refused(result, 2, "tls.certificate:")


def test_a_port_in_use_is_one_sentence_with_the_next_step(own_broker: BrokerProcess, tmp_path: Path) -> None:
    taken = f"127.0.0.1:{own_broker.address.port}"
    result = tidemark("serve", "--data", str(tmp_path / "other"), "--amqp", taken, "--admin", "127.0.0.1:0")
    refused(result, 2, f"listen.amqp: {taken} is in use by process {own_broker.pid} (")
    assert "serve" in result.stderr
    assert result.stderr.rstrip().endswith("; stop it or choose another with --listen.amqp")
    assert not (tmp_path / "other").exists()


def test_a_directory_in_use_is_one_sentence_that_names_the_process(own_broker: BrokerProcess) -> None:
    result = tidemark(
        "serve", "--data", str(own_broker.data), "--amqp", "127.0.0.1:0", "--admin", "127.0.0.1:0"
    )
    refused(result, 2, f"in use by process {own_broker.pid}; stop it or choose another --data directory")
    connect(own_broker).close()


def test_a_directory_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    result = tidemark("serve", "--data", str(tmp_path), "--amqp", "127.0.0.1:0", "--admin", "127.0.0.1:0")
    refused(result, 2, "cannot be used as a data directory")
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_a_damaged_store_is_refused_with_the_place_and_the_next_step(own_broker: BrokerProcess) -> None:
    with connect(own_broker) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("orders", durable=True)
        for n in range(50):
            put(channel, "orders", b"message %d" % n, delivery_mode=2)
    own_broker.stop()
    [segment] = [p for p in own_broker.data.glob("seg-*") if b"message 7" in p.read_bytes()]
    data = bytearray(segment.read_bytes())
    data[data.index(b"message 7")] ^= 1
    segment.write_bytes(data)

    checked = tidemark("store", "check", str(own_broker.data))
    started = tidemark(
        "serve", "--data", str(own_broker.data), "--amqp", "127.0.0.1:0", "--admin", "127.0.0.1:0"
    )

    assert checked.returncode == 1
    assert "orders" in checked.stdout
    assert segment.name in checked.stdout
    refused(started, 1, "tidemark store check")
    assert "orders" in started.stderr


def test_it_does_not_run_without_assertions(tmp_path: Path) -> None:
    result = tidemark("serve", "--data", str(tmp_path / "d"), "--amqp", "127.0.0.1:0", PYTHONOPTIMIZE="1")
    refused(result, 2, "start it without -O")


# What a restart keeps ----------------------------------------------------------------------


@pytest.mark.parametrize("end", [BrokerProcess.stop, BrokerProcess.kill], ids=["stopped", "killed"])
def test_users_and_queues_made_through_the_api_survive(
    own_broker: BrokerProcess, end: Callable[[BrokerProcess], None]
) -> None:
    def api(
        method: str, path: str, body: object = None, user: str = "guest", word: str = "guest"
    ) -> httpx.Response:
        where = own_broker.admin
        url = f"http://{where.host}:{where.port}/api{path}"
        return httpx.request(method, url, json=body, auth=(user, word), timeout=10)

    assert api("PUT", "/users/ada", {"password": "secret", "tags": "administrator"}).status_code == 201
    assert api("PUT", "/vhosts/a%2Fb", {}).status_code == 201
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    assert api("PUT", "/permissions/a%2Fb/ada", everything).status_code == 201
    assert api("PUT", "/queues/a%2Fb/orders", {"durable": True}).status_code == 201

    end(own_broker)
    own_broker.start()

    assert api("GET", "/queues/a%2Fb/orders", user="ada", word="secret").json()["durable"] is True
    login = pika.PlainCredentials("ada", "secret")
    with connect(own_broker, virtual_host="a/b", credentials=login) as connection:
        connection.channel().queue_declare("orders", passive=True)


def test_a_restart_is_a_new_generation_of_the_same_store(own_broker: BrokerProcess) -> None:
    own_broker.stop()
    first = json.loads(tidemark("store", "status", str(own_broker.data), "--json").stdout)
    own_broker.start()
    own_broker.stop()
    second = json.loads(tidemark("store", "status", str(own_broker.data), "--json").stdout)

    assert second["store"] == first["store"]
    assert second["generation"] == first["generation"] + 1
    assert second["history"] != first["history"]


# A full disk -------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MiB."""
    mount = tmp_path / "small"
    mount.mkdir()
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small file system")
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", mount], check=False).returncode:
        pytest.skip("mounting is not allowed here")
    yield mount
    subprocess.run(["umount", "-l", mount], check=True)


def test_a_full_disk_blocks_publishers_loses_nothing_and_goes_on_when_there_is_room(small_disk: Path) -> None:
    broker = BrokerProcess(
        small_disk / "data", "--set", "store.segment_bytes=1MiB", "--set", "store.extent_bytes=64KiB",
        "--set", "limits.disk_free_bytes_min=0",
    )  # fmt: skip
    broker.log_path = small_disk.parent / "broker.log"
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(12 << 20))
    broker.start()
    try:
        confirmed = _publish_until_blocked(broker)
        assert confirmed, "nothing was confirmed before the disk was full"

        ballast.unlink()
        with connect(broker) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            put(channel, "orders", b"after" * 1000, delivery_mode=2)
        broker.kill()
        broker.start()

        with connect(broker) as connection:
            bodies = drain(connection.channel(), "orders")
        kept = {int(body[:8]) for body in bodies if body[:8].isdigit()}
        assert set(range(confirmed)) <= kept
        assert b"after" * 1000 in bodies
    finally:
        broker.close()


def _publish_until_blocked(broker: BrokerProcess) -> int:
    """Publish with confirms until the broker says that it has no room; how many it confirmed."""
    connection = connect(broker, blocked_connection_timeout=2)
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("orders", durable=True)
    confirmed = 0
    try:
        while confirmed < 10_000:
            put(channel, "orders", b"%08d" % confirmed + bytes(50_000), delivery_mode=2)
            confirmed += 1
    except ConnectionBlockedTimeout:
        return confirmed
    raise AssertionError("publishers were not told to wait")
