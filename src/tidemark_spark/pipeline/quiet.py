"""Keeps Spark's many words off the terminal: they go to a file, for when they are needed.

Java, Spark and Python workers all write to standard error, some of it before any logging could be configured, and all of
them inherit the file descriptor. So the descriptor itself is turned to the file; our own words keep the old one.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

CONTEXT_LOGGERS = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
"""With these PySpark writes every error of an analysis as JSON, also those that are caught and said in words."""
KEEP_BYTES = 8 << 20


@contextlib.contextmanager
def quiet(log: Path) -> Iterator[None]:
    """Inside, what anybody else writes to standard error goes to `log`; `sys.stderr` still is where it was."""
    log.parent.mkdir(parents=True, exist_ok=True)
    if log.exists() and log.stat().st_size > KEEP_BYTES:
        log.replace(log.with_suffix(".old.log"))
    sys.stderr.flush()
    kept = os.dup(2)
    before = sys.stderr
    with log.open("ab") as file:
        os.dup2(file.fileno(), 2)
    words = logging.FileHandler(log)
    logging.getLogger().addHandler(words)  # py4j's, which would find its own way to the terminal
    loggers = _spark_loggers()
    for one in loggers:
        one.setLevel(logging.CRITICAL + 1)
    sys.stderr = os.fdopen(
        kept, "w", encoding=before.encoding or "utf-8", errors="replace", buffering=1, closefd=False
    )
    try:
        yield
    finally:
        logging.getLogger().removeHandler(words)
        words.close()
        for one in loggers:
            one.setLevel(logging.NOTSET)
        sys.stderr.flush()
        sys.stderr = before
        os.dup2(kept, 2)
        os.close(kept)


def _spark_loggers() -> list[logging.Logger]:
    try:
        from pyspark.logger import PySparkLogger
    except ImportError:
        return []
    return [PySparkLogger.getLogger(name) for name in CONTEXT_LOGGERS]
