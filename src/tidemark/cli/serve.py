"""`tidemark serve`: a broker with its management API, from settings to exit code."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

from tidemark import config as configuration
from tidemark.config import Config
from tidemark.errors import ConfigError
from tidemark.model import settings
from tidemark.runtime import machine
from tidemark.runtime.log import Log
from tidemark.runtime.server import Server
from tidemark.speed import PURE

SHORT = ("--config", "--name", "--data", "--amqp", "--amqps", "--admin", "--peer", "--set", "--print-config")


def parse_flags(arguments: Sequence[str]) -> dict[str, str]:
    """`--section.key VALUE` and `--section.key=VALUE`, by key.

    Raises:
        ConfigError: something else is among them.
    """
    known = {one.flag: one for one in configuration.every_setting()}
    found: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        flag, equals, value = word.partition("=")
        one = known.get(flag.replace("_", "-"))
        if one is None:
            near = settings.closest(flag, [*known, *SHORT]) if flag.startswith("-") else ""
            raise ConfigError(key=word, problem=f"unknown flag{near}")
        if not equals:
            if not rest or (rest[0].startswith("--") and rest[0].partition("=")[0] in known):
                raise ConfigError(key=flag, problem="needs a value")
            value = rest.pop(0)
        found[one.key] = value
    return found


def parse_assignments(assignments: Sequence[str]) -> dict[str, str]:
    """`KEY=VALUE` of `--set`, by key."""
    found: dict[str, str] = {}
    for text in assignments:
        key, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(key="--set", problem=f"needs KEY=VALUE, not {text!r}")
        found[key.strip().replace("-", "_")] = value.strip()
    return found


def serve(file: Path | None, flags: dict[str, str], *, print_only: bool = False) -> int:
    """Run a broker. Returns the exit code."""
    config = configuration.load(flags, os.environ, file)
    if print_only:
        print(configuration.describe(config))
        return 0
    if not __debug__:
        raise ConfigError(key="python -O", problem="assertions are part of the broker; start it without -O")
    machine.raise_open_files_limit()
    log = Log(config.log.level, config.log.format)
    if PURE:
        log.warning("running without compiled modules", cause="TIDEMARK_PURE is set", effect="slow")
    if config.listen.peer:
        log.warning("peer address ignored", cause="this version stands alone", address=config.listen.peer)
    with asyncio.Runner(loop_factory=_loop_factory(log)) as runner:
        return runner.run(_serve(config, log))


def _loop_factory(log: Log) -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        log.warning("uvloop is not installed", effect="slower network")
        return None
    return uvloop.new_event_loop


async def _serve(config: Config, log: Log) -> int:
    from tidemark.admin.server import AdminServer

    server = Server(config, log)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.stop)
    admin = AdminServer(server) if config.listen.admin else None
    if admin is not None:
        admin.bind()
    await server.start()
    if admin is not None:
        await admin.start()
    # What exists now stays: the collector need not look at it again.
    gc.collect()
    gc.freeze()
    print(_ready_line(config, server), flush=True)
    code = await server.run_until_stopped()
    if admin is not None:
        await admin.stop()
    return code


def _ready_line(config: Config, server: Server) -> str:
    words = [f"{name}={address}" for name, address in sorted(server.addresses.items(), key=_place)]
    return " ".join(["tidemark ready", f"name={config.node.name}", *words, f"pid={os.getpid()}"])


def _place(item: tuple[str, object]) -> int:
    return ("amqp", "amqps", "admin").index(item[0])
