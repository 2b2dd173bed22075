"""What the commands of `tidemark ctl` share: lists that can be narrowed and sorted, one thing shown whole, JSON given as text.

A list is one command of the same shape everywhere, made by `lister`: which columns, in which order, which rows. Without
`--name` and `--limit` it is one call; with them the broker chooses the rows, so that a broker with ten thousand queues
sends only those that are asked for.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from tidemark.cli import CommandError
from tidemark.cli.api import Api, path
from tidemark.cli.ctl import complete
from tidemark.cli.output import found, reveal, show

PAGE = 500
"""Most rows of one answer when a list is narrowed."""
CODES = (
    "Exit code: 0 done; 1 refused or failed, with the reason; 2 the call or the log-in is wrong; 3 no answer."
)

Row = dict[str, Any]
Rows = list[Row]

Json = Annotated[bool, typer.Option("--json", help="Print everything as JSON.")]
Vhost = Annotated[
    str,
    typer.Option("--vhost", envvar="TIDEMARK_VHOST", help="Virtual host.", autocompletion=complete.vhosts),
]
AnyVhost = Annotated[
    str, typer.Option("--vhost", help="Only this virtual host.", autocompletion=complete.vhosts)
]
User = Annotated[str, typer.Argument(help="Name of the user.", autocompletion=complete.users)]
Queue = Annotated[str, typer.Argument(help="Name of the queue.", autocompletion=complete.queues)]
Exchange = Annotated[str, typer.Argument(help="Name of the exchange.", autocompletion=complete.exchanges)]
VhostName = Annotated[str, typer.Argument(help="Name of the virtual host.", autocompletion=complete.vhosts)]
Stream = Annotated[str, typer.Argument(help="Name of the stream.", autocompletion=complete.streams)]
Arguments = Annotated[str, typer.Option(help='Arguments as a JSON object, e.g. {"x-max-length": 10}.')]

Columns = Annotated[
    str,
    typer.Option(
        metavar="NAME,…",
        help="Which columns, in this order: any field that --json shows; a.b is a field of a field.",
        show_default=False,
    ),
]
Sort = Annotated[
    str, typer.Option(metavar="NAME,…", help="Sort by these columns instead.", show_default=False)
]
Reverse = Annotated[bool, typer.Option("--reverse", help="The largest first.")]
Name = Annotated[str, typer.Option("--name", metavar="TEXT", help="Only names with this in them.")]
Regex = Annotated[bool, typer.Option("--regex", help="--name is a regular expression.")]
Limit = Annotated[int, typer.Option(min=0, help="At most so many rows.", show_default="all")]


def group(words: str) -> typer.Typer:
    return typer.Typer(help=words, no_args_is_help=True, epilog=CODES)


def where(kind: str, vhost: str) -> str:
    """The path of a list: of one virtual host, or of all."""
    return path(kind, vhost) if vhost else path(kind)


def parsed(text: str, option: str) -> Row:
    """A JSON object that was given as text; `@FILE` reads it from a file.

    Raises:
        CommandError: it is none.
    """
    if text.startswith("@"):
        text = read_text(text[1:])
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise CommandError(f"{option} must be a JSON object", 2)
    return value


def read_text(file: str) -> str:
    """A file's text; `-` is standard input."""
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text()
    except OSError as problem:
        raise CommandError(f"{file} cannot be read: {problem.strerror}", 2) from None
    except UnicodeDecodeError:
        raise CommandError(f"{file} is not text", 2) from None


# Lists ------------------------------------------------------------------------------------------------


def fetch(api: Api, place: str, query: Mapping[str, str], limit: int = 0) -> Rows:
    """The rows of a list, page by page when `query` or `limit` narrows it."""
    if not query and not limit:
        answer = api.get(place)
        return list(answer["items"] if isinstance(answer, dict) else answer)
    return list(_pages(api, place, query, limit))


def _pages(api: Api, place: str, query: Mapping[str, str], limit: int) -> Iterator[Row]:
    left, number = limit or sys.maxsize, 1
    size = min(left, PAGE)
    while left > 0:
        answer = api.get(place, **query, page=str(number), page_size=str(size))
        if isinstance(answer, list):  # this list is never long, and has no pages
            yield from answer[:left]
            return
        yield from answer["items"][:left]
        left -= len(answer["items"])
        if number >= answer["page_count"]:
            return
        number += 1


def chosen(rows: Rows, columns: Sequence[str], order: Sequence[str], *, reverse: bool) -> Rows:
    """The rows in order.

    Raises:
        CommandError: a column that no row has.
    """
    known = {name for row in rows for name in row}
    for column in (*columns, *order):
        if rows and column not in known and all(found(row, column) is None for row in rows):
            raise CommandError(f"there is no column '{column}'; there are {', '.join(sorted(known))}", 2)

    def place(row: Row) -> list[tuple[int, Any]]:
        return [_rank(found(row, column)) for column in order]

    return sorted(rows, key=place, reverse=reverse)


def _rank(value: Any) -> tuple[int, Any]:
    """Numbers before words before everything else, so that any column can be sorted by."""
    if isinstance(value, (bool, int, float)):
        return 0, value
    if isinstance(value, str):
        return 1, value
    return 2, json.dumps(value)


def words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


Change = Callable[[Rows], Rows]


def lister(
    kind: str,
    columns: Sequence[str],
    doc: str,
    *,
    order: Sequence[str] = ("vhost", "name"),
    change: Change = lambda rows: rows,
    by_vhost: bool = True,
) -> Callable[..., None]:
    """A command that lists `kind`. `change` prepares rows for a table; JSON has them as they came."""

    def run(
        api: Api,
        vhost: str,
        wanted: str,
        sort: str,
        reverse: bool,
        name: str,
        regex: bool,
        limit: int,
        as_json: bool,
    ) -> None:
        query: dict[str, str] = {}
        if name:
            query |= {"name": name, "use_regex": str(regex).lower()}
        asked = words(sort)
        if asked and limit:
            # The broker chooses which rows come, so it must know the order.
            query |= {"sort": asked[0], "sort_reverse": str(reverse).lower()}
        rows = fetch(api, where(kind, vhost), query, limit)
        picked = words(wanted)
        if not as_json:
            rows = change(rows)
        usual = [one for one in order if any(one in row for row in rows)]
        rows = chosen(rows, picked, asked or usual, reverse=reverse)
        if as_json and picked:
            rows = [{column: found(row, column) for column in picked} for row in rows]
        show(rows, picked or columns, as_json=as_json)

    # The last columns are in whatever order they are listed here.
    if by_vhost:

        def command(
            context: typer.Context,
            vhost: AnyVhost = "",
            columns: Columns = "",
            sort: Sort = "",
            reverse: Reverse = False,
            name: Name = "",
            regex: Regex = False,
            limit: Limit = 0,
            as_json: Json = False,
        ) -> None:
            run(context.obj, vhost, columns, sort, reverse, name, regex, limit, as_json)

    else:

        def command(  # type: ignore[misc]
            context: typer.Context,
            columns: Columns = "",
            sort: Sort = "",
            reverse: Reverse = False,
            name: Name = "",
            regex: Regex = False,
            limit: Limit = 0,
            as_json: Json = False,
        ) -> None:
            run(context.obj, "", columns, sort, reverse, name, regex, limit, as_json)

    command.__doc__ = f"{doc}\n\nColumns unless --columns says otherwise: {', '.join(columns)}."
    return command


def facts(context: typer.Context, place: str, *, as_json: bool) -> None:
    """Print everything about one thing."""
    reveal(context.obj.get(place), as_json=as_json)
