"""The admin port of a front, with nobody or one broker behind it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pika
import pytest
from helpers.broker import BrokerProcess
from helpers.front import FrontProcess
from system.cluster.cluster import wait_until

NOBODY = "127.0.0.1:1"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path / "data").start()
    yield process
    process.close()


def started(place: Path, *arguments: str, **groups: str) -> FrontProcess:
    return FrontProcess(place, "--name", "f", "--admin", "127.0.0.1:0", *arguments, **groups).start()


def asked(front: FrontProcess, path: str) -> httpx.Response:
    return httpx.get(f"http://{front.admin.host}:{front.admin.port}{path}", timeout=10)


def test_a_front_tells_who_is_connected_and_what_was_carried(tmp_path: Path, broker: BrokerProcess) -> None:
    behind = broker.address
    front = started(tmp_path / "front", main=f"{behind.host}:{behind.port}")
    try:
        assert asked(front, "/health").json() == {"status": "ok"}
        connection = pika.BlockingConnection(
            pika.ConnectionParameters(front.address.host, front.address.port)
        )
        connection.channel().queue_declare("q")

        told = asked(front, "/api/front").json()
        assert (told["name"], told["state"], told["connections"]) == ("f", "serving", 1)
        assert told["groups"] == {"main": [f"{behind.host}:{behind.port}"]}
        [client] = told["clients"]
        assert (client["user"], client["vhost"], client["links"]) == ("guest", "/", {"main": "open"})

        connection.close()
        wait_until("it has gone", lambda: not asked(front, "/api/front").json()["connections"])
        text = asked(front, "/metrics").text
        assert (
            "tidemark_front_connections 0.0" in text and "tidemark_front_connections_opened_total 1.0" in text
        )
        [sent] = [line for line in text.splitlines() if line.startswith("tidemark_front_sent_bytes_total")]
        assert float(sent.split()[1]) > 0
    finally:
        front.stop()


def test_a_front_that_no_leader_of_main_tells_its_wiring_is_not_well(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.touch(0o600)
    secret.write_text("a secret of all groups")
    cluster = ("--cluster.name", "shop", "--cluster.secret-file", str(secret))
    front = started(tmp_path / "front", *cluster, main=f"a@{NOBODY}", fast=f"b@{NOBODY}")
    try:
        answer = asked(front, "/health")
        assert answer.status_code == 503
        assert answer.json()["reason"] == "no leader of the group 'main' tells the front its wiring"
        assert asked(front, "/api/front").json()["state"] == "waiting"
        assert "tidemark_front_wiring_up 0.0" in asked(front, "/metrics").text
    finally:
        front.close()


def test_without_a_setting_there_is_no_admin_port(tmp_path: Path) -> None:
    front = FrontProcess(tmp_path / "front", "--name", "f", main=NOBODY).start()
    try:
        assert "admin=" not in front.ready_line
    finally:
        front.close()
