"""The words of `tidemark perf`: options in, a line a second, a summary in the end."""

from __future__ import annotations

import asyncio
import json
import signal
import ssl
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import unquote, urlsplit

import typer

from tidemark.cli import CommandError
from tidemark.cli.api import AWAY
from tidemark.cli.output import table

if TYPE_CHECKING:
    from tidemark.cli.perf.run import Plan, Second

PORTS = {"amqp": 5672, "amqps": 5671}
PERCENTILES = ("p50", "p95", "p99", "p99.9", "max")
LINE = "{:>6}  {:>11}  {:>11}  {:>11}  {:>26}  {:>26}"


class Kind(StrEnum):
    classic = "classic"
    quorum = "quorum"
    stream = "stream"
    keyed = "keyed"


def perf(
    url: Annotated[
        str,
        typer.Option(
            envvar="TIDEMARK_AMQP_URL", help="The broker: amqp://USER:PASSWORD@HOST:PORT/VHOST, or amqps://…"
        ),
    ] = "amqp://guest:guest@127.0.0.1:5672/%2F",
    publishers: Annotated[
        int, typer.Option("--publishers", "-x", min=0, max=65_535, help="Publishers, each on a connection.")
    ] = 1,
    consumers: Annotated[
        int, typer.Option("--consumers", "-y", min=0, help="Consumers, each on a connection.")
    ] = 1,
    seconds: Annotated[float, typer.Option("--seconds", "-t", min=0.1, help="How long to publish.")] = 10.0,
    count: Annotated[
        int,
        typer.Option(
            "--count", "-c", min=0, help="So many messages in all, however long it takes.", show_default="no"
        ),
    ] = 0,
    rate: Annotated[
        float,
        typer.Option(
            "--rate",
            "-r",
            min=0,
            help="Messages a second of all publishers.",
            show_default="as fast as possible",
        ),
    ] = 0.0,
    size: Annotated[
        int, typer.Option("--size", "-s", min=22, max=512 << 20, help="Bytes of a message.")
    ] = 128,
    window: Annotated[
        int,
        typer.Option(
            "--window",
            "-w",
            min=0,
            help="Most messages of a publisher that are not confirmed; 0: no confirms.",
        ),
    ] = 1000,
    prefetch: Annotated[
        int,
        typer.Option(
            "--prefetch",
            "-q",
            min=1,
            max=65_535,
            help="Most messages of a consumer that are not acknowledged.",
        ),
    ] = 1000,
    no_ack: Annotated[bool, typer.Option("--no-ack", help="Consumers do not acknowledge.")] = False,
    kind: Annotated[
        Kind,
        typer.Option(
            "--type",
            help="Of the queues. keyed: a stream that keeps the newest message of each key (Tidemark).",
        ),
    ] = Kind.classic,
    transient: Annotated[
        bool, typer.Option("--transient", help="Messages and queue need not survive a restart.")
    ] = False,
    queue: Annotated[
        list[str] | None,
        typer.Option(
            "--queue",
            help="Use this queue, declared if it is not there, and keep it; may be given several times.",
            show_default="one of its own, deleted in the end",
        ),
    ] = None,
    queues: Annotated[
        int,
        typer.Option(
            "--queues", min=1, max=10_000, help="How many of its own; publishers and consumers take turns."
        ),
    ] = 1,
    keys: Annotated[
        int,
        typer.Option(
            "--keys",
            min=0,
            max=1_000_000,
            help="Messages carry one of so many message ids, in turn.",
            show_default="none; of keyed 1000",
        ),
    ] = 0,
    arguments: Annotated[str, typer.Option(help="Arguments of the queues, as a JSON object.")] = "{}",
    keep: Annotated[bool, typer.Option("--keep", help="Keep the queues in the end.")] = False,
    drain: Annotated[
        float, typer.Option(min=0, help="Seconds to wait in the end when nothing more arrives.")
    ] = 30.0,
    ca_file: Annotated[
        Path | None,
        typer.Option(
            envvar="TIDEMARK_CA_FILE",
            help="PEM file with the authorities that sign the broker's certificate.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the summary as JSON, and nothing before it.")
    ] = False,
) -> int:
    """Put load on a broker, and see that everything that it confirmed arrives.

    Every message has a number. In the end each one that was confirmed must have been delivered, once. A line a second shows rates
    and latencies in ms: from publish to confirm, and from publish to delivery.

    Exit code: 0 all confirmed and delivered once; 1 something was lost, came twice or was refused; 2 the call is wrong; 3 no
    connection, or it ended.
    """
    from tidemark.cli.perf.run import Plan

    try:
        given = json.loads(arguments)
    except ValueError:
        given = None
    if not isinstance(given, dict):
        raise CommandError("--arguments must be a JSON object", 2)
    if not publishers and not consumers:
        raise CommandError("there is nothing to do without --publishers and --consumers", 2)
    if kind != Kind.classic and transient:
        raise CommandError(f"a queue of type {kind.value} is always durable: leave --transient out", 2)
    if kind in (Kind.stream, Kind.keyed) and no_ack:
        raise CommandError("a stream is consumed with acknowledgements: leave --no-ack out", 2)
    host, port, login, tls = _address(url, ca_file)
    plan = Plan(
        host=host,
        port=port,
        login=login,
        tls=tls,
        publishers=publishers,
        consumers=consumers,
        queues=tuple(queue or ()),
        queue_count=queues,
        kind=kind.value,
        durable=not transient,
        arguments=given,
        size=size,
        keys=keys or (1000 if kind == Kind.keyed else 0),
        rate=rate,
        window=window,
        prefetch=prefetch,
        no_ack=no_ack,
        seconds=seconds,
        count=count,
        drain_s=drain,
        keep=keep,
    )
    summary = _run(plan, quiet=as_json)
    if as_json:
        print(json.dumps(summary, indent=2))
    else:
        _report(summary)
    wrong = ("lost", "duplicates", "refused", "unconfirmed")
    return 1 if any(summary[name] for name in wrong) else 0


def _address(url: str, ca_file: Path | None) -> tuple[str, int, Any, ssl.SSLContext | None]:
    from tidemark.cli.perf.wire import Login

    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in PORTS or not parts.hostname:
        raise CommandError(f"--url {url!r} is not a URL such as amqp://guest:guest@127.0.0.1:5672/%2F", 2)
    vhost = unquote(parts.path[1:]) if len(parts.path) > 1 else "/"
    login = Login(unquote(parts.username or "guest"), unquote(parts.password or "guest"), vhost)
    tls = None
    if parts.scheme == "amqps":
        try:
            tls = ssl.create_default_context(cafile=ca_file)
        except OSError as problem:
            raise CommandError(
                f"--ca-file {ca_file} cannot be used: {problem.strerror or problem}", 2
            ) from None
    return parts.hostname, port or PORTS[parts.scheme], login, tls


def _run(plan: Plan, *, quiet: bool) -> dict[str, Any]:
    from tidemark.cli.perf.run import Run
    from tidemark.cli.perf.wire import PeerError

    async def go() -> dict[str, Any]:
        run = Run(plan, (lambda _: None) if quiet else _line)
        # The first Ctrl-C ends publishing; the summary still comes.
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, run.stopped.set)
        return await run()

    if not quiet:
        names = (
            "s",
            "published/s",
            "confirmed/s",
            "consumed/s",
            "confirm p50/p95/p99 ms",
            "deliver p50/p95/p99 ms",
        )
        print(LINE.format(*names), flush=True)
    try:
        with asyncio.Runner(loop_factory=_loop()) as runner:
            return runner.run(go())
    except PeerError as problem:
        raise CommandError(str(problem), AWAY) from None


def _loop() -> Any:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def _line(second: Second) -> None:
    rates = [f"{rate:,.0f}" for rate in (second.published, second.confirmed, second.consumed)]
    latencies = [
        "/".join(_ms(one[name]) for name in PERCENTILES[:3]) for one in (second.confirm_ms, second.deliver_ms)
    ]
    text = LINE.format(f"{second.at_s:.0f}", *rates, *latencies) + ("  blocked" if second.blocked else "")
    print(text, flush=True)


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def _report(summary: dict[str, Any]) -> None:
    sys.stdout.write("\n")
    rows = [
        {"what": what, "messages": summary[what], "per second": f"{summary[f'{what}_per_s']:,.0f}"}
        for what in ("published", "confirmed", "consumed")
    ]
    print(table(rows, ("what", "messages", "per second")))
    sys.stdout.write("\n")
    rows = [
        {"latency in ms": what, **{name: _ms(summary[key][name]) for name in PERCENTILES}}
        for what, key in (("publish to confirm", "confirm_ms"), ("publish to delivery", "deliver_ms"))
    ]
    print(table(rows, ("latency in ms", *PERCENTILES)))
    sys.stdout.write("\n")
    words = [
        f"{summary[name]:,} {name}"
        for name in ("lost", "duplicates", "unconfirmed", "refused", "redelivered", "foreign")
        if summary[name] or (name in ("lost", "duplicates") and summary[name] is not None)
    ]
    print(", ".join(words) or "nothing was verified: that takes publishers and consumers")
