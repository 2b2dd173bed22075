"""The pipeline's file: TOML in, frozen values out, every mistake at once.

`read_file` expands `${NAME}` and `${NAME:-default}` in all texts, reads each table field by field and collects what is
wrong instead of stopping at it: a sentence names the table and the field, what is allowed there, and what was
probably meant. `Pipeline.chain` then says what a sink needs: its sources and the transformations in between, in the
order in which they can be made.

Invariant: a `Pipeline` that `read_file` returned refers only to things that it has, without circles, and every sink in
mode mirror depends on exactly one source.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from tidemark_spark.errors import PipelineFileError
from tidemark_spark.pipeline.sinks import KINDS
from tidemark_spark.pipeline.values import Mode

ValueFormat = Literal["json", "avro", "text", "raw"]
KeyFormat = Literal["string", "binary"]
Otherwise = Literal["dead-letter", "fail", "drop"]
StopAt = Literal["batch", "boundary"]

AVAILABLE_NOW = "available-now"
URL = "tidemark://guest:guest@127.0.0.1:5672/"
RESERVED = ("_key", "_sequence", "_timestamp", "_shard", "_history", "_headers")
"""What a view has beside the columns of the value."""

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_SINK_NAME = re.compile(r"(?!lock$)[A-Za-z0-9][A-Za-z0-9_-]*")
"""Without dots: `<pipeline>.<sink>` is the consumer; and not that of a file in the state folder."""
_VARIABLE = re.compile(r"\$\$|\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_INTERVAL = re.compile(r"(\d+)\s*(ms|millisecond|second|minute|hour)s?")
_SECONDS = {"ms": 0.001, "millisecond": 0.001, "second": 1.0, "minute": 60.0, "hour": 3600.0}
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")


# What a file says -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A stream, and how its rows become a view."""

    name: str
    url: str
    stream: str
    value: ValueFormat
    schema: str | None
    """DDL for JSON; the schema itself, as JSON, for Avro."""
    key: KeyFormat
    headers: bool
    otherwise: Otherwise
    """What happens to a row whose key or value cannot be decoded."""
    options: Mapping[str, str]
    """More options of the connector, as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transform:
    name: str
    sql: str | None
    python: str | None
    reads: tuple[str, ...]
    """The sources and transforms that it is made from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    name: str
    on: str
    check: str
    otherwise: Otherwise


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetters:
    stream: str
    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkTable:
    name: str
    kind: str
    reads: str
    mode: Mode
    options: Mapping[str, Any]
    """The whole table, for the sink itself."""


@dataclass(frozen=True, slots=True)
class Chain:
    """What one sink is made of."""

    sources: tuple[Source, ...]
    transforms: tuple[Transform, ...]
    """Each after what it reads; the last one is what the sink reads, unless that is a source."""
    expectations: tuple[Expectation, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    name: str
    path: Path
    state: Path
    checkpoints: str
    trigger: str
    max_rows_per_batch: int
    max_bytes_per_batch: int
    stop: StopAt
    give_up_s: float | None
    sources: Mapping[str, Source]
    transforms: Mapping[str, Transform]
    expectations: tuple[Expectation, ...]
    dead_letters: DeadLetters | None
    sinks: tuple[SinkTable, ...]

    @property
    def folder(self) -> Path:
        """Where the file is: paths in it are relative to this, Python steps are beside it."""
        return self.path.parent

    def chain(self, sink: SinkTable) -> Chain:
        """The sources and transforms that a sink depends on."""
        sources, transforms = _closure(sink.reads, self.sources, self.transforms)
        names = {one.name for one in sources} | {one.name for one in transforms}
        return Chain(sources, transforms, tuple(one for one in self.expectations if one.on in names))

    def consumer(self, sink: str, role: str = "") -> str:
        """As whom a query of a sink reads. No name has a colon in it, so no two queries have the same."""
        return f"{self.name}.{sink}" + (f":{role}" if role else "")

    def checkpoint(self, sink: str, role: str = "checkpoint") -> str:
        return f"{self.checkpoints.rstrip('/')}/{sink}/{role}"


def read_file(path: str | Path) -> Pipeline:
    """The pipeline that a file describes.

    Raises:
        PipelineFileError: with everything that is wrong with it.
    """
    path = Path(path).absolute()
    shown = _shown(path)
    try:
        tables = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        problem = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise PipelineFileError(path=shown, mistakes=(f"cannot be read: {problem}",)) from None
    except tomllib.TOMLDecodeError as error:
        raise PipelineFileError(path=shown, mistakes=(f"is not TOML: {error}",)) from None
    mistakes: list[str] = []
    found = _Reader(path, mistakes).pipeline(_expand(tables, "", os.environ, mistakes))
    if mistakes or found is None:
        raise PipelineFileError(path=shown, mistakes=tuple(mistakes))
    return found


def chosen(pipeline: Pipeline, names: Sequence[str]) -> tuple[SinkTable, ...]:
    """The sinks with these names, or all.

    Raises:
        ValueError: there is no such sink; the text says what there is.
    """
    known = {one.name: one for one in pipeline.sinks}
    for name in names:
        if name not in known:
            hint = near(name, list(known)) or f"; there are {', '.join(known)}"
            raise ValueError(f"there is no sink '{name}'{hint}")
    return tuple(known[name] for name in known if not names or name in names)


def seconds(interval: str) -> float | None:
    """How long `5 seconds`, `500 ms` or `2 minutes` is; None if it is nothing of the kind."""
    match = _INTERVAL.fullmatch(interval.strip().lower())
    return None if match is None else int(match[1]) * _SECONDS[match[2]]


def views_in(sql: str, known: Sequence[str]) -> tuple[str, ...]:
    """Which of the known views a query reads: the names that follow FROM and JOIN."""
    text = re.sub(r"--[^\n]*|/\*.*?\*/|'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.)*\"", " ", sql, flags=re.DOTALL)
    words = re.findall(r"`[^`]+`|[A-Za-z_][A-Za-z0-9_]*|[.,()]|\S", text)
    by_name = {name.lower(): name for name in known}
    found: dict[str, None] = {}
    expecting, listing = False, False
    for index, word in enumerate(words):
        low = word.strip("`").lower()
        if low in ("from", "join"):
            expecting, listing = True, low == "from"
        elif expecting and _IDENTIFIER.fullmatch(low):
            after = words[index + 1] if index + 1 < len(words) else ""
            if low in by_name and after not in (".", "("):
                found[by_name[low]] = None
            expecting = False
        elif listing and word == ",":
            expecting = True
        elif low in ("where", "group", "order", "select", "having", "union", "on", ")", "window", "limit"):
            listing = expecting = False
    return tuple(found)


def near(word: str, known: Sequence[str]) -> str:
    """`; did you mean 'x'?`, when something is near."""
    found = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"; did you mean '{found[0]}'?" if found else ""


def _shown(path: Path) -> str:
    """A path as a person would write it here."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def _closure(
    name: str, sources: Mapping[str, Source], transforms: Mapping[str, Transform]
) -> tuple[tuple[Source, ...], tuple[Transform, ...]]:
    found: dict[str, Source] = {}
    steps: dict[str, Transform] = {}

    def visit(one: str) -> None:
        if one in sources:
            found[one] = sources[one]
        elif one not in steps and (step := transforms.get(one)) is not None:
            for needed in step.reads:
                visit(needed)
            steps[one] = step

    visit(name)
    return tuple(found.values()), tuple(steps.values())


# Reading it -----------------------------------------------------------------------------------------


def _expand(value: Any, where: str, environment: Mapping[str, str], mistakes: list[str]) -> Any:
    match value:
        case str():

            def replaced(match: re.Match[str]) -> str:
                if match[0] == "$$":
                    return "$"
                if (found := environment.get(match[1], match[2])) is None:
                    mistakes.append(
                        f"{where}: the environment has no variable {match[1]}; set it, or write "
                        f"${{{match[1]}:-default}}"
                    )
                    return ""
                return found

            return _VARIABLE.sub(replaced, value)
        case dict():
            return {
                name: _expand(one, _place(where, name, one), environment, mistakes)
                for name, one in value.items()
            }
        case list():
            return [_expand(one, _label(where, one), environment, mistakes) for one in value]
        case _:
            return value


def _place(where: str, name: str, value: Any) -> str:
    if isinstance(value, dict):
        return f"[{where[1:-1]}.{name}]" if where else f"[{name}]"
    if isinstance(value, list) and any(isinstance(one, dict) for one in value):
        return f"[[{name}]]"
    return f"{where} {name}" if where else name


def _label(where: str, value: Any) -> str:
    return f"{where} {value['name']!r}" if isinstance(value, dict) and "name" in value else where


T = TypeVar("T")
_REQUIRED: Any = object()


@dataclass(slots=True)
class _Table:
    """One table of the file; every look at a field may add a mistake."""

    where: str
    values: Mapping[str, Any]
    mistakes: list[str]
    known: list[str] = field(default_factory=list)

    def wrong(self, name: str, problem: str) -> None:
        self.mistakes.append(f"{self.where} {name}: {problem}")

    def get(self, name: str, kind: type[T], words: str, default: Any = _REQUIRED) -> T | None:
        self.known.append(name)
        if name not in self.values:
            if default is _REQUIRED:
                meant = [one for one in self.values if difflib.SequenceMatcher(None, one, name).ratio() > 0.7]
                hint = f"; did you mean it by '{meant[0]}'?" if meant else ""
                self.wrong(name, f"is missing; it is {words}{hint}")
                return None
            return default  # type: ignore[no-any-return]
        value = self.values[name]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            self.wrong(name, f"must be {words}, not {value!r}")
            return None
        return value

    def text(self, name: str, words: str, default: Any = _REQUIRED) -> str | None:
        found = self.get(name, str, words, default)
        if isinstance(found, str) and name in self.values and not found.strip():
            self.wrong(name, f"must be {words}, not empty")
            return None
        return found

    def named(self, name: str, pattern: re.Pattern[str], words: str) -> str | None:
        found = self.text(name, words)
        if found is not None and pattern.fullmatch(found) is None:
            self.wrong(name, f"must be {words}, not {found!r}")
            return None
        return found

    def choice(self, name: str, choices: Sequence[str], default: Any = _REQUIRED) -> Any:
        words = "one of " + ", ".join(map(repr, choices))
        found = self.get(name, str, words, default)
        if found is not None and found is not default and found not in choices:
            self.wrong(name, f"must be {words}, not {found!r}{near(found, list(choices))}")
            return None
        return found

    def done(self) -> None:
        for name in self.values:
            if name not in self.known:
                allowed = ", ".join(self.known)
                self.wrong(name, f"is not known here{near(name, self.known) or f'; known are {allowed}'}")


class _Reader:
    def __init__(self, path: Path, mistakes: list[str]) -> None:
        self._path = path
        self._mistakes = mistakes

    def pipeline(self, tables: Mapping[str, Any]) -> Pipeline | None:
        known = ["pipeline", "source", "transform", "expect", "dead_letter", "sink"]
        for name in tables:
            if name not in known:
                self._mistakes.append(
                    f"[{name}]: there is no such table{near(name, known) or '; there are ' + ', '.join(known)}"
                )
        head = self._table(tables, "pipeline")
        dead = self._dead_letters(tables)
        sources = self._sources(tables, dead is not None)
        if dead is not None and not dead.url:
            first = next(iter(sources.values()), None)
            dead = DeadLetters(stream=dead.stream, url=first.url if first else URL)
        transforms = self._transforms(tables, sources)
        views = [*sources, *transforms]
        expectations = self._expectations(tables, views, dead is not None)
        sinks = self._sinks(tables, views, sources, transforms)
        return self._head(head, sources, transforms, expectations, dead, sinks)

    # Tables -------------------------------------------------------------------------------------

    def _table(self, tables: Mapping[str, Any], name: str) -> _Table:
        value = tables.get(name, {})
        if not isinstance(value, dict):
            self._mistakes.append(f"[{name}]: must be one table, written [{name}]")
            value = {}
        return _Table(f"[{name}]", value, self._mistakes)

    def _array(self, tables: Mapping[str, Any], name: str) -> Iterator[_Table]:
        values = tables.get(name, [])
        if not isinstance(values, list) or not all(isinstance(one, dict) for one in values):
            self._mistakes.append(f"[{name}]: there may be several of them, so it is written [[{name}]]")
            return
        for number, one in enumerate(values, 1):
            title = one.get("name")
            label = repr(title) if isinstance(title, str) and title else f"number {number}"
            yield _Table(f"[[{name}]] {label}", one, self._mistakes)

    def _head(
        self,
        head: _Table,
        sources: Mapping[str, Source],
        transforms: Mapping[str, Transform],
        expectations: tuple[Expectation, ...],
        dead: DeadLetters | None,
        sinks: tuple[SinkTable, ...],
    ) -> Pipeline | None:
        name = head.named("name", _NAME, "a name of letters, digits, '.', '_' and '-'")
        state = head.text("state", "a folder", f".tidemark/{name}")
        checkpoints = head.text("checkpoints", "a folder or an address that Spark knows", None)
        trigger = head.text("trigger", f"an interval such as '1 second', or '{AVAILABLE_NOW}'", "1 second")
        if trigger is not None and trigger != AVAILABLE_NOW and seconds(trigger) is None:
            head.wrong(
                "trigger",
                f"must be an interval such as '1 second' or '500 ms', or '{AVAILABLE_NOW}', not {trigger!r}"
                f"{near(trigger, [AVAILABLE_NOW])}",
            )
        rows = head.get("max_rows_per_batch", int, "a whole number of rows", 500_000)
        size = head.get("max_bytes_per_batch", int, "a whole number of bytes", 256 << 20)
        for setting, number in (("max_rows_per_batch", rows), ("max_bytes_per_batch", size)):
            if number is not None and number < 1:
                head.wrong(setting, f"must be at least 1, not {number}")
        stop = head.choice("stop", get_args(StopAt), "batch")
        patience = head.text("give_up_after", "an interval such as '10 minutes'", None)
        give_up = None if patience is None else seconds(patience)
        if patience is not None and give_up is None:
            head.wrong("give_up_after", f"must be an interval such as '10 minutes', not {patience!r}")
        head.done()
        if name is None or state is None or trigger is None or rows is None or size is None or stop is None:
            return None
        where = self._path.parent / state
        return Pipeline(
            name=name,
            path=self._path,
            state=where,
            checkpoints=checkpoints if checkpoints is not None else str(where),
            trigger=trigger,
            max_rows_per_batch=rows,
            max_bytes_per_batch=size,
            stop=stop,
            give_up_s=give_up,
            sources=sources,
            transforms=transforms,
            expectations=expectations,
            dead_letters=dead,
            sinks=sinks,
        )

    def _dead_letters(self, tables: Mapping[str, Any]) -> DeadLetters | None:
        if "dead_letter" not in tables:
            return None
        table = self._table(tables, "dead_letter")
        stream = table.text("stream", "the name of a stream")
        url = table.text("url", "a broker's address", "")
        if url and not url.startswith(("tidemark://", "tidemarks://")):
            table.wrong("url", "must begin with tidemark:// or tidemarks://")
        table.done()
        return DeadLetters(stream=stream or "?", url=url or "")

    def _sources(self, tables: Mapping[str, Any], dead_letters: bool) -> dict[str, Source]:
        found: dict[str, Source] = {}
        values = tables.get("source", {})
        if isinstance(values, list) or (values and not all(isinstance(one, dict) for one in values.values())):
            self._mistakes.append("[source]: each has a name, so it is written [source.NAME]")
            return found
        if not values:
            self._mistakes.append("[source.NAME]: a pipeline needs at least one, with the stream to read")
        for name, one in values.items():
            table = _Table(f"[source.{name}]", one, self._mistakes)
            self._view_name(table, name, found)
            url = table.text("url", "a broker's address such as tidemark://user:password@host:5672/", URL)
            if url is not None and not url.startswith(("tidemark://", "tidemarks://")):
                table.wrong("url", "must begin with tidemark:// or tidemarks://")
            stream = table.text("stream", "the name of a stream")
            value = table.choice("value", get_args(ValueFormat), "json")
            schema = self._schema(table, value)
            key = table.choice("key", get_args(KeyFormat), "string")
            headers = table.get("headers", bool, "true or false", False)
            usual: Otherwise = "dead-letter" if dead_letters else "fail"
            otherwise = self._otherwise(table, usual, dead_letters)
            options = self._options(table)
            table.done()
            found[name] = Source(
                name=name,
                url=url or URL,
                stream=stream or "?",
                value=value or "raw",
                schema=schema,
                key=key or "string",
                headers=bool(headers),
                otherwise=otherwise or usual,
                options=options,
            )
        return found

    def _schema(self, table: _Table, value: ValueFormat | None) -> str | None:
        given = table.text("schema", "the columns of the value", None)
        if value in ("text", "raw") and given is not None:
            table.wrong("schema", f"is only for JSON and Avro; a {value} value is one column, 'value'")
        if value == "json" and "schema" not in table.values:
            table.wrong(
                "schema",
                'is missing; it is the columns of the value, such as "name STRING, amount DECIMAL(10,2)"',
            )
        if value != "avro":
            return given
        if given is None:
            if "schema" not in table.values:
                table.wrong(
                    "schema", "is missing; it is the path of an Avro schema (.avsc), or the schema itself"
                )
            return None
        if given.lstrip().startswith(("{", '"', "[")):
            return given
        try:
            return (self._path.parent / given).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            table.wrong("schema", f"{given!r} cannot be read: {getattr(error, 'strerror', None) or error}")
            return None

    def _options(self, table: _Table) -> Mapping[str, str]:
        given = table.get("options", dict, "a table of the connector's options", {})
        found: dict[str, str] = {}
        ours = {
            "subscribe": "stream",
            "tidemark.url": "url",
            "groupid": None,
            "includeheaders": "headers",
            "maxoffsetspertrigger": None,
            "maxbytespertrigger": None,
            "startingoffsets": None,
            "asof": None,
        }
        for name, value in (given or {}).items():
            if name.lower() in ours:
                instead = ours[name.lower()]
                table.wrong(
                    f"options.{name}",
                    f"write {instead} = … instead" if instead else "is the pipeline's own to choose",
                )
            elif isinstance(value, bool):
                found[name] = "true" if value else "false"
            elif isinstance(value, (str, int, float)):
                found[name] = str(value)
            else:
                table.wrong(f"options.{name}", f"must be text or a number, not {value!r}")
        return found

    def _otherwise(self, table: _Table, usual: Otherwise, dead_letters: bool) -> Otherwise | None:
        found: Otherwise | None = table.choice("otherwise", get_args(Otherwise), usual)
        if found == "dead-letter" and not dead_letters and "[dead_letter]" not in "".join(self._mistakes):
            table.wrong(
                "otherwise", "dead letters need a table [dead_letter] with the stream that takes them"
            )
        return found

    def _view_name(self, table: _Table, name: str, taken: Mapping[str, Any]) -> None:
        if _IDENTIFIER.fullmatch(name) is None:
            table.wrong("name", f"SQL sees it as a view, so it is letters, digits and '_', not {name!r}")
        if any(name.lower() == one.lower() for one in taken):
            table.wrong("name", f"there is another source or transform '{name}'")

    def _transforms(self, tables: Mapping[str, Any], sources: Mapping[str, Source]) -> dict[str, Transform]:
        read: list[tuple[_Table, str, str | None, str | None, list[str] | None]] = []
        names: dict[str, None] = {}
        for table in self._array(tables, "transform"):
            name = table.text("name", "the name of the view that it makes")
            if name is not None:
                self._view_name(table, name, {**sources, **names})
                names[name] = None
            sql = table.text("sql", "a SELECT", None)
            python = table.text("python", "'module:function'", None)
            if ("sql" in table.values) == ("python" in table.values):
                table.wrong("sql", 'write either sql = "SELECT …" or python = "module:function"')
            if python is not None and re.fullmatch(r"[\w.]+:\w+", python) is None:
                table.wrong("python", f"must be 'module:function', not {python!r}")
            given = table.values.get("from")
            reads = [given] if isinstance(given, str) else given
            table.known.append("from")
            if reads is not None and (
                not isinstance(reads, list) or not all(isinstance(one, str) for one in reads)
            ):
                table.wrong(
                    "from", f"must be the name of a source or transform, or a list of them, not {given!r}"
                )
                reads = []
            table.done()
            if name is not None:
                read.append((table, name, sql, python, reads))
        views = [*sources, *names]
        found: dict[str, Transform] = {}
        for table, name, sql, python, reads in read:
            if reads is None and python is not None:
                table.wrong("from", "is missing; it is the source or transform that the function gets")
            chosen = tuple(reads) if reads is not None else views_in(sql or "", views)
            if reads is None and sql is not None and not chosen:
                table.wrong("sql", f"reads none of {', '.join(views)}{self._meant(sql, views)}")
            for one in reads or ():
                self._known_view(table, "from", one, views)
            found[name] = Transform(name=name, sql=sql, python=python, reads=chosen)
        self._no_circles(found)
        return found

    def _meant(self, sql: str, views: Sequence[str]) -> str:
        for word in re.findall(r"(?:from|join)\s+`?(\w+)", sql, re.IGNORECASE):
            if hint := near(word, views):
                return hint
        return ""

    def _known_view(self, table: _Table, name: str, value: str, views: Sequence[str]) -> None:
        if value not in views:
            hint = near(value, views) or f"; there are {', '.join(views)}"
            table.wrong(name, f"there is no source or transform {value!r}{hint}")

    def _no_circles(self, transforms: Mapping[str, Transform]) -> None:
        done: set[str] = set()

        def visit(name: str, path: tuple[str, ...]) -> None:
            if name in path:
                circle = " → ".join((*path[path.index(name) :], name))
                self._mistakes.append(f"[[transform]] {name!r} reads itself: {circle}")
                raise RecursionError
            if name in done or name not in transforms:
                return
            for one in transforms[name].reads:
                visit(one, (*path, name))
            done.add(name)

        for name in transforms:
            try:
                visit(name, ())
            except RecursionError:
                return

    def _expectations(
        self, tables: Mapping[str, Any], views: Sequence[str], dead_letters: bool
    ) -> tuple[Expectation, ...]:
        found: dict[tuple[str, str], Expectation] = {}
        for table in self._array(tables, "expect"):
            name = table.text("name", "what is expected, in words")
            on = table.text("on", "the name of a source or transform")
            if on is not None:
                self._known_view(table, "on", on, views)
            check = table.text("check", "a condition in SQL that must be true for every row")
            otherwise = self._otherwise(table, "dead-letter" if dead_letters else "fail", dead_letters)
            table.done()
            if name is None or on is None or check is None or otherwise is None:
                continue
            if (on, name) in found or name == "decodes":
                table.wrong("name", f"there is another expectation '{name}' on '{on}'")
            found[on, name] = Expectation(name=name, on=on, check=check, otherwise=otherwise)
        return tuple(found.values())

    def _sinks(
        self,
        tables: Mapping[str, Any],
        views: Sequence[str],
        sources: Mapping[str, Source],
        transforms: Mapping[str, Transform],
    ) -> tuple[SinkTable, ...]:
        found: dict[str, SinkTable] = {}
        for table in self._array(tables, "sink"):
            name = table.named("name", _SINK_NAME, "a name of letters, digits, '_' and '-' (but not 'lock')")
            kind = table.text("kind", "one of " + ", ".join(KINDS))
            if kind is not None and kind not in KINDS and re.fullmatch(r"\w+(\.\w+)+:\w+", kind) is None:
                table.wrong(
                    "kind", f"must be one of {', '.join(KINDS)}, not {kind!r}{near(kind, list(KINDS))}"
                )
            reads = table.text("from", "the source or transform that it gets")
            mode: Mode | None = table.choice("mode", get_args(Mode), "mirror")
            key = self._key_columns(table, mode)
            if name is not None and name in found:
                table.wrong("name", "there is another sink of that name")
            if reads is not None:
                self._known_view(table, "from", reads, views)
            if name is None or kind is None or reads is None or mode is None:
                continue
            if mode == "mirror" and not self._mistakes:
                needed, _ = _closure(reads, sources, transforms)
                if len(needed) > 1:
                    names = ", ".join(one.name for one in needed)
                    table.wrong(
                        "from",
                        f"'{reads}' is made of several sources ({names}); mode mirror follows one. Joins need mode "
                        f'= "append" or "update"',
                    )
            options = dict(table.values) | {"mode": mode}
            if key is not None:
                options["key"] = list(key)
            path = options.get("path")
            if isinstance(path, str) and path and _SCHEME.match(path) is None:
                options["path"] = str(self._path.parent / path)
            found[name] = SinkTable(name=name, kind=kind, reads=reads, mode=mode, options=options)
        if not tables.get("sink"):
            self._mistakes.append("[[sink]]: a pipeline needs at least one")
        return tuple(found.values())

    def _key_columns(self, table: _Table, mode: Mode | None) -> tuple[str, ...] | None:
        given = table.values.get("key")
        if given is None:
            if mode == "update":
                table.wrong("key", "is missing; mode update replaces rows by it: a list of columns")
            return None
        columns = [given] if isinstance(given, str) else given
        if (
            not isinstance(columns, list)
            or not columns
            or not all(isinstance(one, str) and one for one in columns)
        ):
            table.wrong("key", f"must be a list of columns, not {given!r}")
            return None
        if mode == "mirror":
            table.wrong(
                "key", "is for mode update; in mode mirror rows have the stream's key (key_column names it)"
            )
        return tuple(columns)
