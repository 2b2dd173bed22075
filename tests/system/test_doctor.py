"""`tidemark doctor` as an operator runs it: before the broker is started, while it runs, and for a real cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.broker import BrokerProcess
from helpers.etcd import PROGRAM, Etcd, free_port

SOURCE = Path(__file__).resolve().parents[2] / "src"


def doctor(*words: str) -> tuple[int, dict[str, list[dict[str, Any]]]]:
    """The exit code, and the findings by check."""
    command = [sys.executable, "-m", "tidemark", "doctor", "--json", *words]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TIDEMARK_")}
    done = subprocess.run(
        command,
        env=environment | {"PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stderr == ""
    found: dict[str, list[dict[str, Any]]] = {}
    for one in json.loads(done.stdout):
        found.setdefault(one["check"], []).append(one)
    worst = {"ok": 0, "warn": 1, "fail": 2}
    assert done.returncode == max(worst[one["level"]] for several in found.values() for one in several)
    return done.returncode, found


def level(found: dict[str, list[dict[str, Any]]], check: str) -> set[str]:
    return {one["level"] for one in found[check]}


def test_before_during_and_after_a_broker_runs(tmp_path: Path) -> None:
    amqp, admin = free_port(), free_port()
    file = tmp_path / "tidemark.toml"
    file.write_text(
        f'[node]\ndata = "{tmp_path}/data"\n[listen]\namqp = "127.0.0.1:{amqp}"\nadmin = "127.0.0.1:{admin}"\n'
        "[limits]\nconnections_max = 100\n"
    )

    _, found = doctor("--config", str(file))
    assert level(found, "ports.amqp") == level(found, "data.directory") == {"ok"}
    assert "no broker answers" in found["broker.answer"][0]["text"]
    assert not (tmp_path / "data").exists()

    broker = BrokerProcess(tmp_path / "data", "--config", str(file))
    broker._amqp, broker._admin = f"127.0.0.1:{amqp}", f"127.0.0.1:{admin}"
    broker.start()
    try:
        _, found = doctor("--config", str(file))
        assert level(found, "ports.amqp") == level(found, "ports.admin") == {"ok"}
        assert f"process {broker.pid}" in found["data.holder"][0]["text"]
        assert level(found, "broker.version") == level(found, "broker.health") == {"ok"}

        code, found = doctor("--config", str(file), "--data", str(tmp_path / "other"))
        assert code == 2
        assert level(found, "ports.amqp") == {"fail"}

        broker.pause()
        code, found = doctor("--config", str(file))
        assert code == 2
        assert level(found, "broker.answer") == {"fail"}
        broker.resume()
    finally:
        broker.stop()

    _, found = doctor("--config", str(file))
    assert "nobody" in found["data.holder"][0]["text"]


def test_an_alarm_of_the_running_broker_is_found(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", "--limits.disk-free-bytes-min", str(1 << 60)).start()
    try:
        url = f"http://{broker.admin.host}:{broker.admin.port}"
        code, found = doctor("--url", url, "--data", str(broker.data))
        assert code == 2
        assert "disk" in " ".join(one["text"] for one in found["broker.health"] if one["level"] == "fail")
    finally:
        broker.stop()


@pytest.mark.skipif(not Path(PROGRAM).exists(), reason="etcd is not installed")
def test_a_member_without_its_etcd_is_found(tmp_path: Path) -> None:
    etcd = Etcd(tmp_path / "etcd").start()
    words = [
        "--set",
        "cluster.name=c",
        "--set",
        f"cluster.etcd={etcd.endpoint}",
        "--set",
        "listen.peer=127.0.0.1:0",
    ]
    member = BrokerProcess(tmp_path / "data", "--name", "a", *words).start()
    try:
        url = f"http://{member.admin.host}:{member.admin.port}"
        _, found = doctor("--url", url, "--data", str(member.data), *words)
        assert level(found, "cluster.etcd") == level(found, "cluster.member") == {"ok"}
        assert level(found, "cluster.copies") == {"warn"}  # it is the only one

        etcd.kill()
        code, found = doctor("--url", url, "--data", str(member.data), *words)
        assert code == 2
        assert level(found, "cluster.etcd.reachable") == {"fail"}
    finally:
        member.close()
        etcd.close()
