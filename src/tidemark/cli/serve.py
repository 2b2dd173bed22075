"""`tidemark serve`: a broker with its management API, from settings to exit code.

A broker that starts again is waited for. So the newest checkpoint is read by a thread of its own while the broker's
code is imported, and the code of the management API while the store is recovered.
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tidemark import config as configuration
from tidemark.config import Config
from tidemark.errors import ConfigError
from tidemark.model import settings
from tidemark.runtime import machine, wholefile
from tidemark.runtime.log import Log
from tidemark.speed import PURE
from tidemark.store.names import CHECKPOINT_PREFIX

if TYPE_CHECKING:
    import asyncio

    from tidemark.runtime.server import Server

NAMED = {
    "--name": "node.name",
    "--data": "node.data",
    "--amqp": "listen.amqp",
    "--amqps": "listen.amqps",
    "--admin": "listen.admin",
    "--peer": "listen.peer",
}
"""Flags with a name of their own, and the settings that they stand for."""
SHORT = ("--config", *NAMED, "--set", "--print-config")


@dataclass(frozen=True, slots=True)
class Call:
    """What a command line says."""

    file: Path | None
    flags: dict[str, str]
    print_only: bool


def understood(arguments: Sequence[str]) -> Call | None:
    """A plain call, as the command line's own parser understands it; None: let that one see.

    Raises:
        ConfigError: a flag of a setting is wrong.
    """
    file = os.environ.get("TIDEMARK_CONFIG") or None
    named: dict[str, str] = {}
    assignments: list[str] = []
    others: list[str] = []
    print_only = False
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if word == "--print-config":
            print_only = True
            continue
        flag, equals, value = word.partition("=")
        if flag == "--print-config" or not flag.startswith("--") or not (flag in SHORT or "." in flag):
            return None
        if not equals:
            if not rest or rest[0].startswith("-"):
                return None
            value = rest.pop(0)
        if flag == "--config":
            file = value
        elif flag == "--set":
            assignments.append(value)
        elif flag in NAMED:
            named[NAMED[flag]] = value
        else:
            others += [word] if equals else [word, value]
    flags = named | parse_flags(others) | parse_assignments(assignments)
    return Call(Path(file) if file is not None else None, flags, print_only)


def parse_flags(arguments: Sequence[str]) -> dict[str, str]:
    """`--section.key VALUE` and `--section.key=VALUE`, by key; and those of `NAMED` that nobody has taken out before.

    Raises:
        ConfigError: something else is among them.
    """
    known = NAMED | {one.flag: one.key for one in configuration.every_setting()}
    found: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        flag, equals, value = word.partition("=")
        key = known.get(flag.replace("_", "-"))
        if key is None:
            near = settings.closest(flag, [*known, *SHORT]) if flag.startswith("-") else ""
            raise ConfigError(key=word, problem=f"unknown flag{near}")
        if not equals:
            if not rest or (rest[0].startswith("--") and rest[0].partition("=")[0] in known):
                raise ConfigError(key=flag, problem="needs a value")
            value = rest.pop(0)
        found[key] = value
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
    if config.listen.peer and not config.cluster.name:
        log.warning("peer address ignored", cause="cluster.name is not set", address=config.listen.peer)
    # Until it serves next to nothing of what is made is garbage.
    gc.disable()
    early = wholefile.newest(config.node.data, CHECKPOINT_PREFIX)
    import asyncio

    with asyncio.Runner(loop_factory=loop_factory(log)) as runner:
        return runner.run(_serve(config, log, early))


def loop_factory(log: Log) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """What makes the event loop; None is the standard one."""
    try:
        import uvloop
    except ImportError:
        log.warning("uvloop is not installed", effect="slower network")
        return None
    return uvloop.new_event_loop


async def _serve(config: Config, log: Log, early: wholefile.WholeFile | None) -> int:
    import asyncio

    from tidemark.admin.server import AdminServer

    server = _server(config, log, early)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.stop)
    admin = AdminServer(server) if config.listen.admin or config.listen.admins else None
    if admin is not None:
        admin.bind()
    await server.start()
    if admin is not None:
        await admin.start()
    # What exists now stays: the collector need not look at it again.
    gc.collect()
    gc.freeze()
    gc.enable()
    print(_ready_line(config, server), flush=True)
    code = await server.run_until_stopped()
    if admin is not None:
        await admin.stop()
    return code


def _server(config: Config, log: Log, early: wholefile.WholeFile | None) -> Server:
    if config.cluster.name:
        from tidemark.runtime.member_server import MemberServer

        return MemberServer(config, log, early)
    from tidemark.runtime.server import Server

    return Server(config, log, early)


def _ready_line(config: Config, server: Server) -> str:
    words = [f"{name}={address}" for name, address in sorted(server.addresses.items(), key=_place)]
    if server.member is not None:
        words.append(f"state={server.member.mode.state}")
    return " ".join(["tidemark ready", f"name={config.node.name}", *words, f"pid={os.getpid()}"])


def _place(item: tuple[str, object]) -> int:
    return ("amqp", "amqps", "admin", "admins", "peer").index(item[0])
