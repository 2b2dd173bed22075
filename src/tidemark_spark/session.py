"""Spark sessions as the connector and pipelines like them: Java found, workers of this Python, little said, low latency.

`build_session` turns a few arguments into settings (`settings`, a plain function) and starts the session. What the
caller sets in `conf` wins over every default here. The environment is only filled in, never overwritten, because
Spark reads it when its JVM starts; who runs under `spark-submit` has chosen a master there, and keeps it.

Invariant: a session that is returned runs its driver's and, with a local master, its workers' Python code in
`sys.executable`.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tidemark_spark.errors import SparkMissing
from tidemark_spark.interpreter import quick_python
from tidemark_spark.java import java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL_MASTER = "local[*,4]"
"""All cores of this machine; a task that fails is tried again, as on a cluster."""
FAST_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"
"""Half the time to the first result, and a third of the speed afterwards: for one-shot runs and tests."""
FILE_MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
STATE_STORE = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
LOGGING = Path(__file__).with_name("log4j2.properties")


def build_session(
    app: str,
    *,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    packages: Sequence[str] = (),
    checkpoints: str | os.PathLike[str] | None = None,
    fast_start: bool = False,
) -> SparkSession:
    """A session for `app`: a new one, or the one that this process already has.

    `checkpoints` is where its queries keep theirs: on a local path a faster way to write them is used. `packages` are
    Maven coordinates. `conf` wins over all of this.

    Raises:
        SparkMissing: PySpark is not installed.
        JavaMissing: there is no Java that it could run on.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise SparkMissing from None
    chosen = settings(
        master=master,
        conf=conf or {},
        packages=packages,
        checkpoints=checkpoints,
        fast_start=fast_start,
        submitted=_submitted(),
    )
    _prepare(chosen, fast_start)
    builder = SparkSession.builder.appName(app)
    for name, value in chosen.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def settings(
    *,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    packages: Sequence[str] = (),
    checkpoints: str | os.PathLike[str] | None = None,
    fast_start: bool = False,
    submitted: bool = False,
) -> dict[str, str]:
    """The configuration of such a session. Under `spark-submit` (`submitted`) an unnamed master stays its own."""
    given = dict(conf or {})
    if packages:
        given["spark.jars.packages"] = ",".join([*_listed(given.get("spark.jars.packages")), *packages])
    configured = given.pop("spark.master", None)
    master = master or configured or (None if submitted else LOCAL_MASTER)
    found = {
        # Python workers are spoken to without TCP: 20 ms less a micro-batch, and no stall when both sides send much.
        "spark.python.unix.domain.socket.enabled": "true",
        # A Python source that is told of filters fails every read without this; ours asks only when told to.
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.metricsEnabled": "true",
        "spark.sql.streaming.stateStore.providerClass": STATE_STORE,
        "spark.ui.showConsoleProgress": "false",
    }
    if master:
        found["spark.master"] = master
    java = [f"-Dlog4j2.configurationFile={LOGGING.as_uri()}"]
    if master and is_local(master):
        found["spark.driver.host"] = "127.0.0.1"
        found["spark.driver.bindAddress"] = "127.0.0.1"
        found["spark.sql.shuffle.partitions"] = str(cores(master))
        found["spark.ui.enabled"] = "false"
    if fast_start:
        java.append(FAST_START)
    if submitted:  # the driver's JVM runs already
        found["spark.log.level"] = "ERROR"
    else:
        java += _listed(given.pop("spark.driver.extraJavaOptions", None), None)
        found["spark.driver.extraJavaOptions"] = " ".join(java)
    if is_local_path(checkpoints):
        found["spark.sql.streaming.checkpointFileManagerClass"] = FILE_MANAGER
    return found | given


def is_local(master: str) -> bool:
    return re.fullmatch(r"local(\[.*\])?", master) is not None


def cores(master: str) -> int:
    """How many tasks a local master runs at once."""
    number = re.match(r"local\[(\d+|\*)", master)
    if number is None:
        return 1
    if number[1] != "*":
        return int(number[1])
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def is_local_path(path: str | os.PathLike[str] | None) -> bool:
    """Whether files there are on this machine, where a rename is atomic: `a/b`, `/a/b`, `file:/a/b`."""
    return path is not None and urlsplit(os.fspath(path)).scheme in ("", "file")


def _listed(text: str | None, separator: str | None = ",") -> list[str]:
    return [part for part in (text or "").split(separator) if part]


def _submitted() -> bool:
    """`spark-submit` started us and has a JVM waiting."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _prepare(chosen: Mapping[str, str], fast_start: bool) -> None:
    """The environment that Spark reads when its JVM and its workers start."""
    environment = os.environ
    if not _submitted():
        environment["JAVA_HOME"] = java_home()
        if fast_start:
            environment.setdefault("SPARK_LAUNCHER_OPTS", FAST_START)
    local = is_local(chosen.get("spark.master", ""))
    ours = quick_python(sys.executable) if local else sys.executable
    environment.setdefault("PYSPARK_DRIVER_PYTHON", chosen.get("spark.pyspark.driver.python", ours))
    environment.setdefault("PYSPARK_PYTHON", chosen.get("spark.pyspark.python", ours))
    if local:
        environment.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
