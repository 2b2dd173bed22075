"""Writes the pages of docs/ that are made from code: configuration.md, errors.md, spark-options.md and commands/.

`--check` changes nothing and exits 1 when a page is not what the code says.
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, get_args, get_origin

from tidemark import config, errors
from tidemark.model import settings

DOCS = Path(__file__).parent.parent / "docs"
MADE = "<!-- Made by tools/make_docs.py from the code: change it there. -->\n"


def configuration() -> str:
    lines = [
        "# Configuration",
        "",
        MADE,
        "A value comes from the first of these that has it:",
        "",
        "1. a flag of `tidemark serve`: `--store.segment-bytes 8MiB` or `--set store.segment_bytes=8MiB`;",
        "   the most used have short names: `--name`, `--data`, `--amqp`, `--amqps`, `--admin`",
        "2. the environment: `TIDEMARK_STORE_SEGMENT_BYTES=8MiB`",
        '3. a TOML file given by `--config` or `TIDEMARK_CONFIG`: `[store]`, `segment_bytes = "8MiB"`',
        "4. the default below",
        "",
        "`tidemark serve --print-config` shows every value and where it came from, in a form that can be used",
        "as a file. A wrong setting is one sentence on standard error and exit code 2, before anything starts.",
        "Sizes may be written with a unit: `KiB`, `MiB`, `GiB`, or `kB`, `MB`, `GB`.",
    ]
    for section, kind in config.SECTIONS.items():
        lines += ["", f"## [{section}]", ""]
        lines += ["| key | type | default | what it does |", "|---|---|---|---|"]
        for one in settings.of(section, kind):
            shown = _size(one.default) if "_bytes" in one.name else settings.show(one.default)
            kinds = one.type_name.replace("|", "\\|")
            lines.append(f"| `{one.name}` | {kinds} | `{shown}` | {one.doc} |")
    return "\n".join(lines) + "\n"


def _size(value: object) -> str:
    if isinstance(value, int) and value:
        for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
            if value % size == 0:
                return f"{value // size}{unit}"
    return settings.show(value)


def error_page() -> str:
    tree = (errors.__doc__ or "").split("\n\n")[1]
    lines = ["# Errors", "", MADE, "```text", inspect.cleandoc(tree), "```", ""]
    lines += [
        "Every error is one sentence that says what to do next. `code` never changes; AMQP clients see the reply",
        "code. Facts are fields of the exception.",
        "",
        "| code | AMQP | exception | facts | what it means |",
        "|---|---|---|---|---|",
    ]
    for kind in _kinds(errors.TidemarkError):
        facts = ", ".join(f"`{one.name}`" for one in fields(kind))
        doc = inspect.cleandoc(kind.__doc__ or "").split("\n\n")[0].replace("\n", " ")
        lines.append(f"| `{kind.code}` | {kind.amqp091} | `{kind.__name__}` | {facts} | {doc} |")
    return "\n".join(lines) + "\n"


def _kinds(kind: type[errors.TidemarkError]) -> Iterator[type[errors.TidemarkError]]:
    for child in kind.__subclasses__():
        if not child.__name__.startswith("_"):
            yield child
        yield from _kinds(child)


def spark_options() -> str:
    from tidemark_spark import options, writer

    lines = [
        "# Options of the Spark source and sink",
        "",
        MADE,
        "Names are those of spark-sql-kafka where the meaning is the same; upper and lower case are the same. Durations may be",
        "written as `90s`, `10m`, `1h`, sizes as `64m`, `1g`. What they are for is told in [spark.md](spark.md).",
        "",
        "## Reading",
        "",
        "| option | for | default | what it does |",
        "|---|---|---|---|",
    ]
    lines += [_option(one, one.modes) for one in options.READ]
    lines += ["", "## Writing", "", "| option | for | default | what it does |", "|---|---|---|---|"]
    both = {one.name: one for one in (*writer.BATCH, *writer.STREAM)}
    for name, one in both.items():
        kinds = [
            kind
            for kind, table in (("batch", writer.BATCH), ("stream", writer.STREAM))
            if name in {other.name for other in table}
        ]
        lines.append(_option(one, kinds))
    return "\n".join(lines) + "\n"


def _option(one: Any, used_by: Sequence[str]) -> str:
    shown = "" if one.default is None else f"`{str(one.default).lower()}`"
    return f"| `{one.name}` | {', '.join(used_by)} | {shown} | {one.about} |"


# The command line -------------------------------------------------------------------------------------


def command_pages() -> dict[str, Callable[[], str]]:
    """A page for each command of `tidemark`, one for each noun of `ctl`, and a list of all."""
    from typer.main import get_command

    from tidemark.cli.app import app

    root = get_command(app)
    pages: dict[str, Callable[[], str]] = {"commands/README.md": partial(_commands, root)}
    for name, command in _visible(root):
        pages[f"commands/{name}.md"] = partial(_command_page, f"tidemark {name}", command)
        if name == "ctl":
            for noun, inner in _visible(command):
                if getattr(inner, "commands", None):
                    pages[f"commands/ctl-{noun}.md"] = partial(_command_page, f"tidemark ctl {noun}", inner)
    return pages


def _visible(group: Any) -> list[tuple[str, Any]]:
    found = getattr(group, "commands", None) or {}
    return [(name, one) for name, one in sorted(found.items()) if not one.hidden]


def _commands(root: Any) -> str:
    lines = [
        "# Commands",
        "",
        MADE,
        "Every command has `--help`, and `--json` where it prints a table. `tidemark --install-completion` makes the shell complete",
        "commands, options and the names of queues, users and streams of the running broker.",
        "",
        "| command | what it does |",
        "|---|---|",
    ]
    for name, command in _visible(root):
        lines.append(f"| [`tidemark {name}`]({name}.md) | {_first(command)} |")
        if name == "ctl":
            for noun, inner in _visible(command):
                page = f"ctl-{noun}.md" if getattr(inner, "commands", None) else f"ctl.md#tidemark-ctl-{noun}"
                lines.append(f"| [`tidemark ctl {noun}`]({page}) | {_first(inner)} |")
    return "\n".join(lines) + "\n"


def _command_page(title: str, command: Any) -> str:
    lines = [f"# {title}", "", MADE]
    lines += _described(title, command)
    inner = _visible(command)
    if inner:
        lines += ["", "| command | what it does |", "|---|---|"]
        for name, one in inner:
            page = f"ctl-{name}.md" if title == "tidemark ctl" and getattr(one, "commands", None) else ""
            link = page or "#" + f"{title} {name}".replace(" ", "-")
            lines.append(f"| [`{name}`]({link}) | {_first(one)} |")
    for name, one in inner:
        if title == "tidemark ctl" and getattr(one, "commands", None):
            continue
        lines += ["", f"## {title} {name}", ""]
        lines += _described(f"{title} {name}", one)
        for deeper, last in _visible(one):
            lines += ["", f"### {title} {name} {deeper}", ""]
            lines += _described(f"{title} {name} {deeper}", last)
    return "\n".join(lines) + "\n"


def _first(command: Any) -> str:
    text = inspect.cleandoc(command.help or "").split("\n\n")[0].replace("\n", " ")
    return _plain(text).replace("|", "\\|")


def _plain(text: str) -> str:
    """Help as it reads in a page: a name in angle brackets would be taken for markup."""
    return text.replace("<", "&lt;").replace(">", "&gt;")


def _described(title: str, command: Any) -> list[str]:
    """Usage, words, arguments and options of one command."""
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [
        one for one in command.params if one.param_type_name == "option" and not getattr(one, "hidden", False)
    ]
    options = [one for one in options if one.name not in ("help", "install_completion", "show_completion")]
    usage = [title] + (["[OPTIONS]"] if options else [])
    if getattr(command, "commands", None):
        usage.append("COMMAND …")
    usage += [_word(one) if one.required else f"[{_word(one)}]" for one in arguments]
    lines = ["```text", " ".join(usage), "```"]
    if command.help:
        lines += ["", *_plain(inspect.cleandoc(command.help)).split("\n")]
    if command.epilog:
        lines += ["", *_plain(inspect.cleandoc(command.epilog)).split("\n")]
    if arguments or options:
        lines += ["", "| | | default |", "|---|---|---|"]
        for one in arguments:
            lines.append(f"| `{_word(one)}` | {_told(one)} | {_default(one)} |")
        for one in options:
            names = ", ".join(f"`{name}`" for name in one.opts)
            value = "" if one.is_flag else f" `{_word(one)}`"
            lines.append(f"| {names}{value} | {_told(one)} | {_default(one)} |")
    return lines


KINDS = {int: "N", float: "NUMBER", Path: "FILE", bool: "BOOL"}


def _word(one: Any) -> str:
    """What stands for a value: a name given to it, its choices, or its kind."""
    if one.metavar:
        return str(one.metavar)
    kinds = _kinds_of(one)
    for kind in kinds:
        if isinstance(kind, type) and issubclass(kind, Enum):
            return "\\|".join(str(choice.value) for choice in kind)
    if one.param_type_name == "argument":
        return str(one.name).upper()
    return next((KINDS[kind] for kind in kinds if kind in KINDS), "TEXT")


def _kinds_of(one: Any) -> list[Any]:
    """The types that a parameter is declared with; of `list[X] | None`: list, X and None."""
    found, look = [], [one.type_descriptor.annotation]
    while look:
        kind = look.pop(0)
        found.append(get_origin(kind) or kind)
        look += get_args(kind)
    return found


def _told(one: Any) -> str:
    words = _plain((one.help or "").replace("|", "\\|").replace("\n", " "))
    words = words.partition("  [default:")[0]
    variable = getattr(one, "envvar", None)
    if isinstance(variable, (list, tuple)):
        variable = variable[0] if variable else None
    return words + (f" Variable: `{variable}`." if variable else "")


def _default(one: Any) -> str:
    if isinstance(one.show_default, str):
        return one.show_default
    if one.required:
        return "needed"
    if one.help and "  [default: " in one.help:
        return f"`{one.help.partition('  [default: ')[2].rstrip(']')}`"
    value = one.default
    if value is None or value is False or value in ("", []) or callable(value) or one.show_default is False:
        return ""
    return f"`{getattr(value, 'value', value)}`"


PAGES: dict[str, Callable[[], str]] = {
    "configuration.md": configuration,
    "errors.md": error_page,
    "spark-options.md": spark_options,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    stale = 0
    pages = PAGES | command_pages()
    for name, make in pages.items():
        path, text = DOCS / name, make()
        if path.exists() and path.read_text() == text:
            continue
        if check:
            print(f"docs/{name} is not what the code says; run tools/make_docs.py", file=sys.stderr)
            stale = 1
        else:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
            print(f"docs/{name} written")
    for path in sorted((DOCS / "commands").glob("*.md")):
        if f"commands/{path.name}" not in pages:
            print(f"docs/commands/{path.name} is about a command that is gone", file=sys.stderr)
            stale = 1
            if not check:
                path.unlink()
    return stale if check else 0


if __name__ == "__main__":
    sys.exit(main())
