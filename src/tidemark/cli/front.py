"""`tidemark front`: a process that clients connect to, and that speaks for them with the leaders of groups."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from pathlib import Path

from tidemark import config as configuration
from tidemark.admin.front import FrontAdmin, WatchedFront
from tidemark.cli.serve import loop_factory
from tidemark.config import Config
from tidemark.errors import ConfigError
from tidemark.runtime import machine
from tidemark.runtime.log import Log
from tidemark.speed import PURE


def front(
    file: Path | None, flags: dict[str, str], groups: Sequence[str], *, print_only: bool = False
) -> int:
    """Run a front. Returns the exit code."""
    if groups:
        flags = flags | {"front.groups": ",".join(groups)}
    config = configuration.load(flags, os.environ, file)
    if print_only:
        print(configuration.describe(config))
        return 0
    if not __debug__:
        raise ConfigError(key="python -O", problem="assertions are part of the front; start it without -O")
    machine.raise_open_files_limit()
    log = Log(config.log.level, config.log.format)
    if PURE:
        log.warning("running without compiled modules", cause="TIDEMARK_PURE is set", effect="slow")
    with asyncio.Runner(loop_factory=loop_factory(log)) as runner:
        return runner.run(_front(config, log))


async def _front(config: Config, log: Log) -> int:
    server = WatchedFront(config, log)
    admin = FrontAdmin(server)
    admin.bind()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.stop)
    await server.start()
    await admin.start()
    words = [f"{name}={address}" for name, address in server.addresses.items()]
    print(" ".join(["tidemark ready", f"name={config.node.name}", *words, f"pid={os.getpid()}"]), flush=True)
    code = await server.run_until_stopped()
    await admin.stop()
    return code
