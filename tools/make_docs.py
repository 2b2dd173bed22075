"""Writes the pages of docs/ that are made from code: configuration.md, errors.md and spark-options.md.

`--check` changes nothing and exits 1 when a page is not what the code says.
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

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


PAGES = {"configuration.md": configuration, "errors.md": error_page, "spark-options.md": spark_options}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    stale = 0
    for name, make in PAGES.items():
        path, text = DOCS / name, make()
        if path.exists() and path.read_text() == text:
            continue
        if check:
            print(f"docs/{name} is not what the code says; run tools/make_docs.py", file=sys.stderr)
            stale = 1
        else:
            path.write_text(text)
            print(f"docs/{name} written")
    return stale


if __name__ == "__main__":
    sys.exit(main())
