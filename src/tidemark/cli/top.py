"""`tidemark top`: a running broker in the terminal, once a second: node, rates, busiest queues, streams, members.

What is shown is made by `draw` from what the API answered; `top` asks, draws and listens to keys. Without a terminal, or with
`--once`, it is printed once as plain text.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemark.cli import CommandError, connection
from tidemark.cli.api import Api, NoAnswer, Refusal, path
from tidemark.cli.output import table

if TYPE_CHECKING:
    from rich.console import RenderableType

ROWS_MAX = 200
MESSAGE_STATS = ("publish", "confirm", "deliver_get", "ack", "redeliver")


class Order(StrEnum):
    rate = "rate"
    messages = "messages"
    unacked = "unacked"
    consumers = "consumers"
    name = "name"


KEYS = {"r": Order.rate, "m": Order.messages, "u": Order.unacked, "c": Order.consumers, "n": Order.name}
HELP = "q quit   sort by: r rate  m messages  u unacked  c consumers  n name"


@dataclass(slots=True)
class View:
    """What was seen at one time."""

    at_s: float
    overview: dict[str, Any]
    node: dict[str, Any]
    queues: list[dict[str, Any]]
    streams: list[dict[str, Any]]
    members: list[dict[str, Any]]
    rates: dict[str, float] = field(default_factory=dict)
    """Messages a second, of the whole broker."""


def look(api: Api, before: View | None = None) -> View:
    """Ask the broker once. Rates come from the broker; where it has none, from what it said before."""
    now = time.monotonic()
    overview = api.get(path("overview"))
    queues = _rows(api, "queues", page="1", page_size=str(ROWS_MAX), sort="messages", sort_reverse="true")
    view = View(
        now,
        overview,
        next(iter(_rows(api, "nodes")), {}),
        [one for one in queues if one.get("type") != "stream"],
        _rows(api, "streams")[:ROWS_MAX],
        _members(api),
    )
    _rate(view, before)
    return view


def _rows(api: Api, kind: str, **query: str) -> list[dict[str, Any]]:
    try:
        found = api.get(path(kind), **query)
    except Refusal:
        return []  # this user may not see it
    return list(found["items"] if isinstance(found, dict) else found)


def _members(api: Api) -> list[dict[str, Any]]:
    """The members of a cluster; none of a broker that stands alone."""
    rows = _rows(api, "members")
    return rows if any(row.get("state") != "alone" for row in rows) else []


def _rate(view: View, before: View | None) -> None:
    stats = view.overview.get("message_stats") or {}
    for name in MESSAGE_STATS:
        view.rates[name] = _of(
            stats, name, (before.overview.get("message_stats") or {}) if before else None, view, before
        )
    known = {(one["vhost"], one["name"]): one for one in before.queues} if before else {}
    for one in view.queues:
        mine, old = one.get("message_stats") or {}, known.get((one["vhost"], one["name"]))
        earlier = (old.get("message_stats") or {}) if old else None
        one["in/s"] = _of(mine, "publish", earlier, view, before)
        one["out/s"] = _of(mine, "deliver_get", earlier, view, before)


def _of(
    stats: dict[str, Any], name: str, earlier: dict[str, Any] | None, view: View, before: View | None
) -> float:
    told = stats.get(f"{name}_details")
    if isinstance(told, dict):
        return float(told.get("rate") or 0)
    if earlier is None or before is None:
        return 0.0
    return max(0.0, float(stats.get(name, 0) - earlier.get(name, 0)) / max(1e-3, view.at_s - before.at_s))


# Drawing -----------------------------------------------------------------------------------------------


def ordered(queues: list[dict[str, Any]], order: Order) -> list[dict[str, Any]]:
    place: Callable[[dict[str, Any]], float] = {
        Order.rate: lambda one: -(one["in/s"] + one["out/s"]),
        Order.messages: lambda one: -one.get("messages", 0),
        Order.unacked: lambda one: -one.get("messages_unacknowledged", 0),
        Order.consumers: lambda one: -one.get("consumers", 0),
        Order.name: lambda _: 0,
    }[order]
    return sorted(queues, key=lambda one: (place(one), one["vhost"], one["name"]))


def facts(view: View) -> list[str]:
    """The head: a few lines about the whole broker."""
    overview, node = view.overview, view.node
    totals, held = overview.get("object_totals") or {}, overview.get("queue_totals") or {}
    first = f"{overview.get('node')}  tidemark {overview.get('product_version')}"
    if node:
        first += f"  up {_time(node.get('uptime', 0) / 1000)}  memory {_size(node.get('mem_used'))} of {_size(node.get('mem_limit'))}"
        if isinstance(node.get("disk_free"), int):
            first += f"  disk free {_size(node['disk_free'])}"
    alarms = [word for word in ("mem", "disk_free") if node.get(f"{word}_alarm")]
    if alarms:
        first += f"  ALARM: {', '.join(alarms)}: publishers wait"
    counts = "  ".join(
        f"{name} {totals[name]:,}"
        for name in ("connections", "channels", "queues", "consumers")
        if name in totals
    )
    counts += f"  messages {held.get('messages', 0):,} ({held.get('messages_unacknowledged', 0):,} unacked)"
    rates = "  ".join(f"{name} {view.rates[name]:,.0f}/s" for name in MESSAGE_STATS)
    return [first, counts, rates]


def tables(view: View, order: Order, rows_max: int) -> Iterator[tuple[str, list[str], list[dict[str, Any]]]]:
    """Title, columns, rows of what is below the head."""
    queues = [
        {
            "vhost": one["vhost"],
            "queue": one["name"],
            "ready": one.get("messages_ready", 0),
            "unacked": one.get("messages_unacknowledged", 0),
            "consumers": one.get("consumers", 0),
            "in/s": round(one["in/s"]),
            "out/s": round(one["out/s"]),
            "state": one.get("state"),
        }
        for one in ordered(view.queues, order)[:rows_max]
    ]
    yield "Queues", ["vhost", "queue", "ready", "unacked", "consumers", "in/s", "out/s", "state"], queues
    streams = [
        {
            "vhost": one["vhost"],
            "stream": one["name"],
            "rows": one.get("live", 0),
            "bytes": one.get("live_bytes", 0),
            "boundary": one.get("boundary", 0),
            "marks": one.get("marks", 0),
            "pins": one.get("pins", 0),
            "consumers": one.get("consumers", 0),
        }
        for one in view.streams[: max(3, rows_max // 3)]
    ]
    if streams:
        yield (
            "Streams",
            ["vhost", "stream", "rows", "bytes", "boundary", "marks", "pins", "consumers"],
            streams,
        )
    if view.members:
        yield "Members", ["name", "state", "role", "lag", "lag_bytes", "seen_ms", "amqp"], view.members


def plain(view: View, order: Order, rows_max: int) -> str:
    parts = ["\n".join(facts(view))]
    for title, columns, rows in tables(view, order, rows_max):
        parts.append(f"{title}\n{table(rows, columns) if rows else 'none'}")
    return "\n\n".join(parts)


def draw(view: View, order: Order, rows_max: int) -> RenderableType:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from tidemark.cli.output import BAD, GOOD, cell, numeric

    lines = [Text(line, no_wrap=True, overflow="ellipsis") for line in facts(view)]
    lines[0].stylize("bold red" if "ALARM" in lines[0].plain else "bold")
    lines[2].stylize("cyan")
    parts: list[RenderableType] = [*lines]
    for title, columns, rows in tables(view, order, rows_max):
        drawn = Table(
            title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, expand=True
        )
        for column, right in zip(columns, numeric(rows, columns), strict=True):
            drawn.add_column(column, justify="right" if right else "left", no_wrap=True, header_style="dim")
        for row in rows:
            texts = [
                Text(
                    f"{row.get(c):,}"
                    if isinstance(row.get(c), int) and not isinstance(row.get(c), bool)
                    else cell(row.get(c))
                )
                for c in columns
            ]
            for text in texts:
                if text.plain in GOOD:
                    text.stylize("green")
                elif text.plain in BAD:
                    text.stylize("red")
            drawn.add_row(*texts)
        parts += [Text(""), drawn]
    parts += [Text(""), Text(f"{HELP}   (now: {order.value})", style="dim")]
    return Group(*parts)


def _size(count: int | None) -> str:
    from tidemark.cli.doctor.finding import size

    return "?" if count is None else size(count)


def _time(seconds: float) -> str:
    days, rest = divmod(int(seconds), 86_400)
    clock = f"{rest // 3600}:{rest % 3600 // 60:02}:{rest % 60:02}"
    return f"{days} d {clock}" if days else clock


# The command -------------------------------------------------------------------------------------------


def top(
    context: typer.Context,
    url: connection.Url = connection.LOCAL,
    user: connection.User = connection.FIRST_USER,
    password: connection.Password = None,
    password_file: connection.PasswordFile = None,
    ask_password: connection.AskPassword = False,
    ca_file: connection.CaFile = None,
    interval: Annotated[float, typer.Option(min=0.2, help="Seconds from one look to the next.")] = 1.0,
    sort: Annotated[Order, typer.Option(help="Order of the queues.")] = Order.rate,
    rows: Annotated[int, typer.Option(min=0, max=ROWS_MAX, help="Most queues.", show_default="as fit")] = 0,
    once: Annotated[bool, typer.Option("--once", help="Print it once as text, and stop.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print it once as JSON, and stop.")] = False,
) -> int:
    """Watch a broker in the terminal: node, rates, the busiest queues, streams, members.

    Keys: q quits; r, m, u, c, n sort by rate, messages, unacked, consumers, name. Without a terminal it is printed once.

    Exit code: 0 done; 1 refused; 2 the call or the log-in is wrong; 3 no answer.
    """
    api = connection.connect(context, url, user, password, password_file, ask_password, ca_file)
    if once or as_json or not (sys.stdout.isatty() and sys.stdin.isatty()):
        before = look(api)
        time.sleep(min(interval, 1.0))
        view = look(api, before)
        if as_json:
            found = {
                "overview": view.overview,
                "rates": view.rates,
                "queues": ordered(view.queues, sort)[: rows or ROWS_MAX],
                "streams": view.streams,
                "members": view.members,
            }
            print(json.dumps(found, indent=2, ensure_ascii=False))
        else:
            print(plain(view, sort, rows or 20))
        return 0
    _watch(api, sort, interval, rows)
    return 0


def _watch(api: Api, order: Order, interval: float, rows: int) -> None:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console()
    view = look(api)
    with _keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
        due = time.monotonic()
        while True:
            room = rows or max(3, console.height - 22)
            live.update(draw(view, order, room), refresh=True)
            due = max(due + interval, time.monotonic())
            while (left := due - time.monotonic()) > 0:
                key = pressed(left)
                if key in ("q", "\x03", "\x1b"):
                    return
                if key in KEYS:
                    order = KEYS[key]
                    live.update(draw(view, order, room), refresh=True)
            try:
                view = look(api, view)
            except NoAnswer as problem:
                # A broker that is restarted comes back.
                live.update(Text(f"{problem}", style="bold red"), refresh=True)
                if pressed(interval) == "q":
                    return
            except CommandError:
                raise


@contextlib.contextmanager
def _keys() -> Iterator[Any]:
    """Single keys, as they are pressed: a function that waits for one, and gives '' when none came."""
    import termios
    import tty

    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    tty.setcbreak(fd)

    def pressed(seconds: float) -> str:
        if not select.select([fd], [], [], max(0.0, seconds))[0]:
            return ""
        return os.read(fd, 1).decode("ascii", "replace")

    try:
        yield pressed
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
