"""The words of `tidemark doctor`: settings in as for `serve`, a line a finding out, and an exit code."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidemark.cli import connection

if TYPE_CHECKING:
    from tidemark.cli.doctor.finding import Finding
    from tidemark.config import Config

COLOURS = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def doctor(
    context: typer.Context,
    config: Annotated[
        Path | None, typer.Option(help="TOML file with settings.", envvar="TIDEMARK_CONFIG")
    ] = None,
    data: Annotated[str | None, typer.Option(help="Directory of the journal.")] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any setting, as for serve.")
    ] = None,
    url: Annotated[
        str,
        typer.Option(
            envvar="TIDEMARK_URL", help="The broker's admin address.", show_default="as listen.admin says"
        ),
    ] = "",
    user: connection.User = connection.FIRST_USER,
    password: connection.Password = None,
    password_file: connection.PasswordFile = None,
    ask_password: connection.AskPassword = False,
    ca_file: connection.CaFile = None,
    offline: Annotated[bool, typer.Option("--offline", help="Do not look for a running broker.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print all findings as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print only what is not ok.")] = False,
) -> int:
    """Look for what makes a broker slow, unsafe or dead, and say what to do about it.

    Settings are taken as 'serve' takes them, flags like --store.cache-bytes included. Run it where the broker runs, and as its
    user; it works whether the broker runs or not. Nothing is changed; a small file is written to the data directory and removed.

    Exit code: 0 all is ok; 1 there are warnings; 2 something fails, or the call is wrong.
    """
    findings: list[Finding] = []

    def note(new: Iterable[Finding]) -> None:
        for one in new:
            findings.append(one)
            if not as_json and not (quiet and one.level == 0):
                _print(one)

    settings = _settings(config, data, assignments or [], context.args, note)
    secret = connection.secret(context, password, password_file, ask_password)
    for check in _checks(settings, url, user, secret, ca_file, offline):
        note(check)
    worst = max((int(one.level) for one in findings), default=0)
    if as_json:
        print(
            json.dumps(
                [
                    {"check": one.check, "level": one.level.name, "text": one.text, "advice": one.advice}
                    for one in findings
                ],
                indent=2,
                ensure_ascii=False,
            )
        )
    else:
        counts = {name: sum(one.level.name == name for one in findings) for name in COLOURS}
        print(f"\n{counts['ok']} ok, {counts['warn']} to look at, {counts['fail']} failed")
    return worst


def _settings(
    file: Path | None,
    data: str | None,
    assignments: list[str],
    words: list[str],
    note: Callable[[Iterable[Finding]], None],
) -> Config | None:
    """The settings; None when they cannot be used, which is noted."""
    from tidemark import config as configuration
    from tidemark.cli.doctor.finding import fail
    from tidemark.cli.serve import parse_assignments, parse_flags
    from tidemark.errors import ConfigError

    try:
        flags = {"node.data": data} if data is not None else {}
        flags |= parse_flags(words) | parse_assignments(assignments)
        return configuration.load(flags, os.environ, file)
    except ConfigError as problem:
        note(
            [
                fail(
                    "config.settings",
                    str(problem),
                    "correct it; 'tidemark serve --print-config' shows all settings",
                )
            ]
        )
        return None


def _checks(
    config: Config | None, url: str, user: str, password: str, ca_file: Path | None, offline: bool
) -> Iterator[Iterator[Finding]]:
    from tidemark.cli.api import Api
    from tidemark.cli.doctor import broker, machine, network, settings, store, tls

    held = None if config is None else store.holder(config.node.data)
    if config is not None:
        yield _safely("config", lambda: settings.sources(config))
        yield _safely("config", lambda: settings.known_bad(config))
    yield _safely("python", machine.python)
    yield _safely("machine", machine.user)
    if config is not None:
        yield _safely("limits", lambda: machine.files(config, held or None))
        yield _safely("memory", lambda: machine.memory(config))
    yield _safely("clock", machine.clock)
    if config is not None:
        yield _safely("data", lambda: store.directory(config, held))
        yield _safely("data", lambda: store.syncs(config))
        yield _safely("ports", lambda: network.ports(config, held))
        yield _safely("tls", lambda: tls.certificates(config))
        yield _safely("cluster", lambda: network.etcd(config))
        yield _safely("cluster", lambda: network.peers(config))
        yield _safely("cluster", lambda: network.groups(config))
        yield _safely("front", lambda: network.behind_front(config))
    if offline:
        return
    api = Api(url or _admin_url(config), user, password, ca_file)
    findings, answers = broker.reached(api, held)
    yield iter(findings)
    if not answers:
        return
    exposed = settings.open_to_others(config, "amqp", "amqps", "admin", "admins") if config else []
    for check in (broker.health, broker.node, broker.backlog, broker.streams, broker.cluster):
        yield _safely("broker", lambda check=check: check(api))  # type: ignore[misc]
    yield _safely("broker", lambda: broker.first_password(api, exposed))
    api.close()


def _admin_url(config: Config | None) -> str:
    from tidemark.config import parse_address

    if config is None or not config.listen.admin:
        return connection.LOCAL
    address = parse_address("listen.admin", config.listen.admin)
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address.host, address.host)
    return f"http://[{host}]:{address.port}" if ":" in host else f"http://{host}:{address.port}"


def _safely(name: str, check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """A check that breaks is a finding, and the others go on."""
    from tidemark.cli.doctor.finding import warn

    try:
        yield from check()
    except Exception as problem:
        yield warn(
            f"{name}.check",
            f"this check broke: {type(problem).__name__}: {problem}",
            "please report it, with this line",
        )


def _print(one: Finding) -> None:
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.text import Text

        line = Text.assemble(
            (f"{one.level.name:<4}", COLOURS[one.level.name]), f"  {one.check:<22} {one.text}"
        )
        Console(highlight=False, soft_wrap=True).print(line)
    else:
        print(f"{one.level.name:<4}  {one.check:<22} {one.text}")
    if one.level:
        print(f"{'':<28} → {one.advice}", flush=True)
