"""All commands by name."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tidemark.cli import cluster, pipeline, sim, store, stream
from tidemark.cli.ctl.app import app as ctl
from tidemark.cli.doctor.command import doctor
from tidemark.cli.perf.command import perf
from tidemark.cli.top import top

app = typer.Typer(
    name="tidemark",
    help="A durable message broker: any AMQP client, one journal, nothing acknowledged is ever lost.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.add_typer(ctl, name="ctl")
app.add_typer(store.app, name="store")
app.add_typer(stream.app, name="stream")
app.add_typer(pipeline.app, name="pipeline")
app.add_typer(cluster.app, name="cluster")
app.command()(sim.sim)

EXTRA = {"allow_extra_args": True, "ignore_unknown_options": True}


@app.command(
    context_settings=EXTRA,
    epilog="Every setting has a flag, --section.key VALUE, a variable TIDEMARK_SECTION_KEY and a key in the file. "
    "A flag wins over the environment, that over the file, that over the default. "
    "--print-config lists them all.",
)
def serve(
    context: typer.Context,
    config: Annotated[
        Path | None, typer.Option(help="TOML file with settings.", envvar="TIDEMARK_CONFIG")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of this broker.  [default: tidemark]")] = None,
    data: Annotated[
        str | None, typer.Option(help="Directory of its journal.  [default: ./tidemark-data]")
    ] = None,
    amqp: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="AMQP clients; port 0 is any free one.  [default: 127.0.0.1:5672]"
        ),
    ] = None,
    amqps: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="AMQP clients with TLS; see --tls.certificate.  [default: none]"
        ),
    ] = None,
    admin: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Management API, for ctl.  [default: 127.0.0.1:15672]"),
    ] = None,
    peer: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Cluster members; this version stands alone.")
    ] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any setting, e.g. store.cache_bytes=1GiB."),
    ] = None,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Show every setting with its origin, and stop.")
    ] = False,
) -> int:
    """Run a broker until SIGTERM or SIGINT.

    When it is ready it prints one line on standard output: tidemark ready name=… amqp=… admin=… pid=…
    Logs go to standard error. User guest with password guest may log in from this machine.
    """
    from tidemark.cli import serve as command

    given = (name, data, amqp, amqps, admin, peer)
    named = dict(zip(command.NAMED.values(), given, strict=True))
    flags = {key: value for key, value in named.items() if value is not None}
    flags |= command.parse_flags(context.args)
    flags |= command.parse_assignments(assignments or [])
    return command.serve(config, flags, print_only=print_config)


@app.command(
    context_settings=EXTRA,
    epilog="Every setting has a flag, --section.key VALUE, as with tidemark serve; --print-config lists them all.",
)
def front(
    context: typer.Context,
    config: Annotated[
        Path | None, typer.Option(help="TOML file with settings.", envvar="TIDEMARK_CONFIG")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of this front.  [default: tidemark]")] = None,
    amqp: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="AMQP clients; port 0 is any free one.  [default: 127.0.0.1:5672]"
        ),
    ] = None,
    amqps: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="AMQP clients with TLS; see --tls.certificate.  [default: none]"
        ),
    ] = None,
    admin: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="Health, metrics and connections of this front.  [default: none]"
        ),
    ] = None,
    group: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=MEMBER@HOST:PORT,…",
            help="Members of a group, and where they listen for peers; main is needed. If main is the only group: "
            "HOST:PORT, where they take AMQP clients.",
        ),
    ] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any setting, e.g. amqp091.heartbeat_s=30."),
    ] = None,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Show every setting with its origin, and stop.")
    ] = False,
) -> int:
    """Run a front until SIGTERM or SIGINT: clients connect to it, and it speaks for them with the groups behind it.

    When it is ready it prints one line on standard output: tidemark ready name=… amqp=… pid=…
    Logs go to standard error. It keeps nothing: there may be as many fronts as there is work.
    """
    from tidemark.cli import front as command
    from tidemark.cli import serve as serving

    given = {"node.name": name, "listen.amqp": amqp, "listen.amqps": amqps, "listen.admin": admin}
    flags = {key: value for key, value in given.items() if value is not None}
    flags |= serving.parse_flags(context.args)
    flags |= serving.parse_assignments(assignments or [])
    return command.front(config, flags, group or [], print_only=print_config)


@app.command()
def version() -> None:
    """Print the version, and whether the compiled modules are in use."""
    from tidemark import __version__
    from tidemark.speed import PURE

    print(f"tidemark {__version__}" + (" (pure Python)" if PURE else ""))


app.command()(perf)
app.command(context_settings=EXTRA)(doctor)
app.command()(top)
