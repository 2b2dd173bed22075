"""A real Celery worker process: tasks, retries, late acks, groups, control commands."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, chain, group
from helpers.amqp import eventually
from helpers.broker import Address

HERE = Path(__file__).parent
PATIENCE_S = 30.0


@pytest.fixture(scope="module")
def tasks(broker: Address, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The module of tasks, with a worker of two processes that serves it."""
    prefix = f"celery-{uuid.uuid4().hex[:8]}"
    environment = {"CELERY_TEST_PREFIX": prefix, "CELERY_TEST_BROKER": broker.url("/")}
    os.environ.update(environment)
    sys.path.insert(0, str(HERE))
    import celery_app  # type: ignore[import-not-found]

    log = tmp_path_factory.mktemp("celery") / "worker.log"
    command = [sys.executable, "-m", "celery", "-A", "celery_app", "worker", "--concurrency", "2"]
    command += ["-n", f"{prefix}@here", "--loglevel", "info"]
    with log.open("wb") as output:
        worker = subprocess.Popen(
            command, cwd=HERE, env=os.environ | environment | {"PYTHONPATH": str(HERE)},
            stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
    try:
        eventually(lambda: worker.poll() is not None or b" ready." in log.read_bytes(), 30)
        assert worker.poll() is None, log.read_text()
        yield celery_app
    finally:
        worker.send_signal(signal.SIGTERM)
        try:
            worker.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()
        app: Celery = celery_app.app
        with app.connection_for_write() as connection:
            channel = connection.default_channel
            channel.queue_delete(prefix)
            for exchange in (prefix, f"{prefix}-events", f"{prefix}-control.pidbox"):
                channel.exchange_delete(exchange)
        app.close()
        sys.path.remove(str(HERE))


def test_a_few_dozen_tasks_give_their_results(tasks: Any) -> None:
    results = [tasks.add.delay(number, number) for number in range(60)]
    assert [result.get(timeout=PATIENCE_S) for result in results] == [2 * n for n in range(60)]


def test_a_task_that_retries_succeeds_at_last(tasks: Any) -> None:
    assert tasks.succeeds_at_the_third_attempt.delay().get(timeout=PATIENCE_S) == 2


def test_a_task_that_fails_tells_why(tasks: Any) -> None:
    with pytest.raises(ValueError, match="on purpose"):
        tasks.fails.delay().get(timeout=PATIENCE_S)


def test_a_group_gives_all_results(tasks: Any) -> None:
    result = group(tasks.late.s(f"word {number}") for number in range(20)).apply_async()
    assert result.get(timeout=PATIENCE_S) == [f"WORD {number}" for number in range(20)]


def test_a_chain_passes_results_on(tasks: Any) -> None:
    result = chain(tasks.add.s(1, 2), tasks.add.s(3), tasks.add.s(4)).apply_async()
    assert result.get(timeout=PATIENCE_S) == 10


def test_a_task_with_a_countdown_runs_later(tasks: Any) -> None:
    assert tasks.add.apply_async((1, 1), countdown=0.5).get(timeout=PATIENCE_S) == 2


def test_a_late_acked_task_whose_process_died_runs_again(tasks: Any, tmp_path: Path) -> None:
    result = tasks.dies_once.delay(str(tmp_path / "died"))
    assert result.get(timeout=PATIENCE_S) == "survived"


def test_the_worker_answers_control_commands(tasks: Any) -> None:
    [(_, answer)] = [pair for reply in tasks.app.control.ping(timeout=3) for pair in reply.items()]
    assert answer == {"ok": "pong"}
