"""The Celery application that the worker of test_client_celery runs.

Names and broker come by environment, so that several test runs can share one broker.
"""

from __future__ import annotations

import os
from typing import Any

from celery import Celery

PREFIX = os.environ.get("CELERY_TEST_PREFIX", "celery-test")

app = Celery("interop", broker=os.environ.get("CELERY_TEST_BROKER"), backend="rpc://")
app.conf.update(
    task_default_queue=PREFIX,
    task_default_exchange=PREFIX,
    task_default_routing_key=PREFIX,
    task_default_delivery_mode="persistent",
    event_queue_prefix=f"{PREFIX}-events",
    control_exchange=f"{PREFIX}-control",
    event_exchange=f"{PREFIX}-events",
    worker_prefetch_multiplier=2,
    result_expires=60,
    broker_connection_retry_on_startup=True,
    broker_transport_options={"confirm_publish": True},
    task_publish_retry=True,
)


@app.task
def add(x: int, y: int) -> int:
    return x + y


@app.task(bind=True, max_retries=5, default_retry_delay=0)
def succeeds_at_the_third_attempt(self: Any) -> int:
    if self.request.retries < 2:
        raise self.retry(exc=RuntimeError("not yet"), countdown=0.1)
    return int(self.request.retries)


@app.task(acks_late=True, reject_on_worker_lost=True)
def late(text: str) -> str:
    return text.upper()


@app.task(acks_late=True, reject_on_worker_lost=True)
def dies_once(marker: str) -> str:
    """Kills its own worker process the first time, so that the message must come again."""
    try:
        descriptor = os.open(marker, os.O_CREAT | os.O_EXCL)
    except FileExistsError:
        return "survived"
    os.close(descriptor)
    os.kill(os.getpid(), 9)
    return "not reached"


@app.task
def fails() -> None:
    raise ValueError("on purpose")
