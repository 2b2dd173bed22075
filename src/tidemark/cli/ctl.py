"""`tidemark ctl`: manage a running broker through its management API.

Each command is one call. Lists print a table, or everything with `--json`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from tidemark.cli import CommandError, member
from tidemark.cli.api import Api, path
from tidemark.cli.output import details, show

app = typer.Typer(
    help="Manage a running broker: users, permissions, queues, streams, connections, definitions, its part in a cluster.",
    no_args_is_help=True,
)

Json = Annotated[bool, typer.Option("--json", help="Print everything as JSON.")]
Vhost = Annotated[str, typer.Option("--vhost", help="Virtual host.")]
AnyVhost = Annotated[str, typer.Option("--vhost", help="Only this virtual host.")]
User = Annotated[str, typer.Argument(help="Name of the user.")]
Queue = Annotated[str, typer.Argument(help="Name of the queue.")]


@app.callback()
def connect(
    context: typer.Context,
    url: Annotated[str, typer.Option(envvar="TIDEMARK_URL", help="The broker's admin address.")] = (
        "http://127.0.0.1:15672"
    ),
    user: Annotated[str, typer.Option(envvar="TIDEMARK_USER", help="Who you are.")] = "guest",
    password: Annotated[
        str, typer.Option(envvar="TIDEMARK_PASSWORD", help="Your password.", show_default=False)
    ] = "guest",
) -> None:
    context.obj = Api(url, user, password)


app.add_typer(member.app, name="member")


def _group(name: str, words: str) -> typer.Typer:
    group = typer.Typer(help=words, no_args_is_help=True)
    app.add_typer(group, name=name)
    return group


def _secret(given: str | None) -> str:
    """The password that was given, from standard input for `-`, or asked for."""
    if given == "-":
        return sys.stdin.readline().rstrip("\n")
    if given is not None:
        return given
    return str(typer.prompt("Password", hide_input=True, confirmation_prompt=True))


def _words(tags: str) -> list[str]:
    return [tag.strip() for tag in tags.split(",") if tag.strip()]


def _where(kind: str, vhost: str) -> str:
    return path(kind, vhost) if vhost else path(kind)


@app.command()
def status(context: typer.Context, as_json: Json = False) -> None:
    """What the broker holds and whether publishers are blocked."""
    found = context.obj.get(path("overview"))
    if as_json:
        print(json.dumps(found, indent=2))
        return
    [node] = context.obj.get(path("nodes"))
    facts: dict[str, Any] = {
        "name": found["node"],
        "version": found["product_version"] + ("" if found["compiled"] else " (pure Python)"),
        "up": f"{node['uptime'] / 1000:.0f} s",
        "memory": f"{node['mem_used'] >> 20} of {node['mem_limit'] >> 20} MiB",
        **found["object_totals"],
        **found["queue_totals"],
    }
    alarms = [word for word in ("mem", "disk_free") if node[f"{word}_alarm"]]
    facts["alarms"] = ", ".join(alarms) or "none"
    details(facts)


# Users ------------------------------------------------------------------------------------

users = _group("users", "Who may log in.")
Password = Annotated[
    str | None,
    typer.Option("--password", help="The password; - reads it from standard input.", show_default="asked"),
]
TAGS = "Words with commas: administrator, monitoring, management."


@users.command("list")
def list_users(context: typer.Context, as_json: Json = False) -> None:
    """All users and their tags."""
    show(context.obj.get(path("users")), ("name", "tags"), as_json=as_json)


@users.command("add")
def add_user(
    context: typer.Context,
    name: User,
    password: Password = None,
    tags: Annotated[str, typer.Option(help=TAGS)] = "",
) -> None:
    """Create a user. It may do nothing until it has permissions."""
    if any(user["name"] == name for user in context.obj.get(path("users"))):
        raise CommandError(f"user '{name}' exists; see 'ctl users password' and 'ctl users tags'", 2)
    context.obj.put(path("users", name), {"password": _secret(password), "tags": _words(tags)})


@users.command("delete")
def delete_user(context: typer.Context, name: User) -> None:
    """Delete a user, its permissions and its connections."""
    context.obj.delete(path("users", name))


@users.command("password")
def change_password(context: typer.Context, name: User, password: Password = None) -> None:
    """Give a user another password."""
    user = context.obj.get(path("users", name))
    context.obj.put(path("users", name), {"password": _secret(password), "tags": user["tags"]})


@users.command("tags")
def change_tags(
    context: typer.Context, name: User, tags: Annotated[str, typer.Argument(help=TAGS)] = ""
) -> None:
    """Replace a user's tags."""
    context.obj.get(path("users", name))
    context.obj.put(path("users", name), {"tags": _words(tags)})


# Virtual hosts ------------------------------------------------------------------------------

vhosts = _group("vhosts", "Virtual hosts: each has its own exchanges, queues and permissions.")
VhostName = Annotated[str, typer.Argument(help="Name of the virtual host.")]


@vhosts.command("list")
def list_vhosts(context: typer.Context, as_json: Json = False) -> None:
    """All virtual hosts that you may see."""
    columns = ("name", "messages", "messages_ready", "messages_unacknowledged", "description")
    show(context.obj.get(path("vhosts")), columns, as_json=as_json)


@vhosts.command("add")
def add_vhost(
    context: typer.Context,
    name: VhostName,
    description: Annotated[str, typer.Option(help="What it is for.")] = "",
) -> None:
    """Create a virtual host; you get all permissions in it."""
    context.obj.put(path("vhosts", name), {"description": description})


@vhosts.command("delete")
def delete_vhost(context: typer.Context, name: VhostName) -> None:
    """Delete a virtual host with all queues and messages in it."""
    context.obj.delete(path("vhosts", name))


# Permissions --------------------------------------------------------------------------------

permissions = _group("permissions", "What users may do, as three patterns a virtual host.")
Pattern = Annotated[str, typer.Argument(help="Regular expression for names; '' matches none, '.*' all.")]


@permissions.command("list")
def list_permissions(
    context: typer.Context,
    user: Annotated[str, typer.Option(help="Only this user.")] = "",
    as_json: Json = False,
) -> None:
    """Who may do what where."""
    found = context.obj.get(path("users", user, "permissions") if user else path("permissions"))
    show(found, ("user", "vhost", "configure", "write", "read"), as_json=as_json)


@permissions.command("set")
def set_permissions(
    context: typer.Context, user: User, configure: Pattern, write: Pattern, read: Pattern, vhost: Vhost = "/"
) -> None:
    """Let a user configure (declare, delete), write (publish) and read (consume) what matches."""
    body = {"configure": configure, "write": write, "read": read}
    context.obj.put(path("permissions", vhost, user), body)


@permissions.command("clear")
def clear_permissions(context: typer.Context, user: User, vhost: Vhost = "/") -> None:
    """Take a user's permissions in a virtual host away."""
    context.obj.delete(path("permissions", vhost, user))


topics = _group("topic-permissions", "Which routing keys users may use with a topic exchange.")


@topics.command("list")
def list_topic_permissions(context: typer.Context, as_json: Json = False) -> None:
    """All topic permissions."""
    columns = ("user", "vhost", "exchange", "write", "read")
    show(context.obj.get(path("topic-permissions")), columns, as_json=as_json)


@topics.command("set")
def set_topic_permissions(
    context: typer.Context,
    user: User,
    exchange: Annotated[str, typer.Argument(help="Name of the topic exchange.")],
    write: Pattern,
    read: Pattern,
    vhost: Vhost = "/",
) -> None:
    """Narrow what a user may publish to and bind from a topic exchange."""
    body = {"exchange": exchange, "write": write, "read": read}
    context.obj.put(path("topic-permissions", vhost, user), body)


@topics.command("clear")
def clear_topic_permissions(
    context: typer.Context,
    user: User,
    exchange: Annotated[str, typer.Option(help="Only of this exchange.")] = "",
    vhost: Vhost = "/",
) -> None:
    """Take a user's topic permissions away."""
    query = {"exchange": exchange} if exchange else {}
    context.obj.delete(path("topic-permissions", vhost, user), **query)


# Queues, exchanges, bindings ------------------------------------------------------------------

queues = _group("queues", "Queues and their messages.")


@queues.command("list")
def list_queues(context: typer.Context, vhost: AnyVhost = "", as_json: Json = False) -> None:
    """All queues with their counts."""
    columns = ("vhost", "name", "type", "durable", "messages_ready", "messages_unacknowledged", "consumers")
    show(context.obj.get(_where("queues", vhost)), columns, as_json=as_json)


@queues.command("declare")
def declare_queue(
    context: typer.Context,
    name: Queue,
    vhost: Vhost = "/",
    transient: Annotated[bool, typer.Option("--transient", help="It need not survive a restart.")] = False,
    arguments: Annotated[str, typer.Option(help='JSON object, e.g. {"x-max-length": 10}.')] = "{}",
) -> None:
    """Create a queue, or see that it is there with the same properties."""
    try:
        parsed = json.loads(arguments)
    except ValueError:
        raise CommandError("--arguments must be a JSON object", 2) from None
    context.obj.put(path("queues", vhost, name), {"durable": not transient, "arguments": parsed})


@queues.command("purge")
def purge_queue(context: typer.Context, name: Queue, vhost: Vhost = "/") -> None:
    """Delete all messages that are ready in a queue."""
    context.obj.delete(path("queues", vhost, name, "contents"))


@queues.command("lock")
def lock_queue(context: typer.Context, name: Queue, vhost: Vhost = "/") -> None:
    """Give consumers nothing more from a queue; publishes are still accepted."""
    context.obj.put(path("queues", vhost, name, "lock"), {})


@queues.command("unlock")
def unlock_queue(context: typer.Context, name: Queue, vhost: Vhost = "/") -> None:
    """Let the consumers of a locked queue go on."""
    context.obj.delete(path("queues", vhost, name, "lock"))


@queues.command("delete")
def delete_queue(
    context: typer.Context,
    name: Queue,
    vhost: Vhost = "/",
    if_empty: Annotated[bool, typer.Option("--if-empty", help="Only if it has no messages.")] = False,
    if_unused: Annotated[bool, typer.Option("--if-unused", help="Only if it has no consumers.")] = False,
) -> None:
    """Delete a queue with its messages."""
    query = {"if-empty": str(if_empty).lower(), "if-unused": str(if_unused).lower()}
    context.obj.delete(path("queues", vhost, name), **query)


# Streams ----------------------------------------------------------------------------------------

Stream = Annotated[str, typer.Argument(help="Name of the stream.")]

streams = _group(
    "streams", "Streams: what they hold, how far consumers are, what is pinned. See also 'stream'."
)
marks = _group("marks", "How far the consumers of streams have come.")
pins = _group("pins", "Snapshots of streams that are kept under a name.")
lists = _group("list", "The same lists by another name: list streams, list marks, list pins.")


@lists.command("streams")
@streams.command("list")
def list_streams(context: typer.Context, vhost: AnyVhost = "", as_json: Json = False) -> None:
    """All streams with their counts."""
    counts = ("live", "live_bytes", "tombstones", "held", "held_bytes", "memory_bytes")
    columns = ("vhost", "name", "key", "shards", *counts, "boundary", "pins", "marks", "consumers")
    show(context.obj.get(_where("streams", vhost)), columns, as_json=as_json)


@streams.command("show")
def show_stream(context: typer.Context, name: Stream, vhost: Vhost = "/", as_json: Json = False) -> None:
    """Everything about one stream."""
    found = context.obj.get(path("streams", vhost, name))
    if as_json:
        print(json.dumps(found, indent=2))
    else:
        details(found)


@streams.command("delete")
def delete_stream(context: typer.Context, name: Stream, vhost: Vhost = "/") -> None:
    """Delete a stream with everything in it, its marks and its pins."""
    context.obj.delete(path("streams", vhost, name))


@lists.command("marks")
@marks.command("list")
def list_marks(
    context: typer.Context,
    stream: Annotated[str, typer.Option(help="Only of this stream.")] = "",
    vhost: AnyVhost = "",
    as_json: Json = False,
) -> None:
    """How far the consumers of streams are, and how far behind."""
    columns = ("vhost", "stream", "consumer", "sequence", "behind", "registered", "expired")
    show(_of_streams(context.obj, "marks", vhost, stream), columns, as_json=as_json)


@marks.command("reset")
def reset_mark(
    context: typer.Context,
    stream: Stream,
    consumer: Annotated[str, typer.Argument(help="Name of the consumer.")],
    to: Annotated[int, typer.Option(help="Sequence behind which it goes on; 0 is the beginning.")] = 0,
    vhost: Vhost = "/",
) -> None:
    """Send a consumer back, or ahead."""
    context.obj.put(path("streams", vhost, stream, "marks", consumer), {"sequence": to})


@marks.command("delete")
def delete_mark(
    context: typer.Context,
    stream: Stream,
    consumer: Annotated[str, typer.Argument(help="Name of the consumer.")],
    vhost: Vhost = "/",
) -> None:
    """Forget a consumer: deletes no longer wait for it."""
    context.obj.delete(path("streams", vhost, stream, "marks", consumer))


@lists.command("pins")
@pins.command("list")
def list_pins(
    context: typer.Context,
    stream: Annotated[str, typer.Option(help="Only of this stream.")] = "",
    vhost: AnyVhost = "",
    as_json: Json = False,
) -> None:
    """Pinned snapshots, until when, and what they keep from being freed."""
    columns = ("vhost", "stream", "name", "sequence", "lease_until_ms", "messages_kept", "bytes_kept")
    show(_of_streams(context.obj, "pins", vhost, stream), columns, as_json=as_json)


@pins.command("release")
def release_pin(
    context: typer.Context,
    stream: Stream,
    pin: Annotated[str, typer.Argument(help="Name of the pin.")],
    vhost: Vhost = "/",
) -> None:
    """Let go of a pin; what only it kept is freed."""
    context.obj.delete(path("streams", vhost, stream, "pins", pin))


def _of_streams(api: Api, kind: str, vhost: str, stream: str) -> Any:
    return api.get(path("streams", vhost or "/", stream, kind) if stream else _where(kind, vhost))


exchanges = _group("exchanges", "Where messages are published.")


@exchanges.command("list")
def list_exchanges(context: typer.Context, vhost: AnyVhost = "", as_json: Json = False) -> None:
    """All exchanges."""
    columns = ("vhost", "name", "type", "durable", "auto_delete", "internal")
    show(context.obj.get(_where("exchanges", vhost)), columns, as_json=as_json)


bindings = _group("bindings", "Which exchange leads where.")


@bindings.command("list")
def list_bindings(context: typer.Context, vhost: AnyVhost = "", as_json: Json = False) -> None:
    """All bindings."""
    columns = ("vhost", "source", "destination_type", "destination", "routing_key", "arguments")
    show(context.obj.get(_where("bindings", vhost)), columns, as_json=as_json)


# Connections and consumers --------------------------------------------------------------------

connections = _group("connections", "Who is connected.")


@connections.command("list")
def list_connections(context: typer.Context, as_json: Json = False) -> None:
    """All connections that you may see."""
    columns = ("name", "user", "vhost", "state", "channels", "ssl", "recv_oct", "send_oct")
    show(context.obj.get(path("connections")), columns, as_json=as_json)


@connections.command("close")
def close_connection(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Its name, as in the list.")],
) -> None:
    """Close a connection; its client is told 320 CONNECTION_FORCED."""
    context.obj.delete(path("connections", name))


consumers = _group("consumers", "Who is being given messages.")


@consumers.command("list")
def list_consumers(context: typer.Context, vhost: AnyVhost = "", as_json: Json = False) -> None:
    """All consumers."""
    found = context.obj.get(_where("consumers", vhost))
    if not as_json:
        found = [{**one, "vhost": one["queue"]["vhost"], "queue": one["queue"]["name"]} for one in found]
    columns = ("vhost", "queue", "consumer_tag", "ack_required", "prefetch_count", "active")
    show(found, columns, as_json=as_json)


# Definitions ------------------------------------------------------------------------------------

definitions = _group("definitions", "Everything that was declared, in RabbitMQ's JSON format.")


@definitions.command("export")
def export_definitions(
    context: typer.Context, file: Annotated[str, typer.Argument(help="Where to; - is standard output.")] = "-"
) -> None:
    """Write users, virtual hosts, permissions, queues, exchanges and bindings. Messages are not in it."""
    text = json.dumps(context.obj.get(path("definitions")), indent=2, ensure_ascii=False) + "\n"
    if file == "-":
        sys.stdout.write(text)
    else:
        Path(file).write_text(text)


@definitions.command("import")
def import_definitions(
    context: typer.Context, file: Annotated[str, typer.Argument(help="JSON file; - is standard input.")]
) -> None:
    """Make everything that a file describes; what is there already stays."""
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text()
        document = json.loads(text)
    except OSError as problem:
        raise CommandError(f"{file} cannot be read: {problem.strerror}", 2) from None
    except ValueError:
        raise CommandError(f"{file} is not JSON", 2) from None
    result = context.obj.post(path("definitions"), document)
    for what, count in result["made"].items():
        print(f"{what}: {count} made, {result['kept'].get(what, 0)} kept")
