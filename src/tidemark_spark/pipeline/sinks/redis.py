"""Rows in Redis, one key a row, as a cache that is never ahead of or behind its mark.

A batch is one MULTI: WATCH the mark, read it, decide, queue every row and the new mark, EXEC. Redis executes all of that in
one piece or, when anybody changed the mark meanwhile, none of it: a zombie that wakes up in the middle finds its
EXEC refused, reads the mark again, and sees that its batch is there.

    <prefix><key>                               a JSON document, or a hash with a field a column; `_sequence` among them
    tidemark:mark:<pipeline>.<sink>:<prefix>    the mark

Commands are packed here and not by a client library: of a batch of 500,000 rows the library takes ten seconds to pack
the commands and read the answers. Documents go as MSET of many, hashes as HSET each behind an UNLINK of many (so that a
column that became NULL is gone); answers are read while the next part is sent, so neither side heaps them up.

Which rows there are is found with SCAN over the prefix, not in an index of its own: an index would be one more write and some
70 bytes for every row, all the time, and would not notice rows that Redis evicted or somebody deleted. SCAN costs only
who asks (digest, drop).

Invariant: the keys under the prefix and the mark change in the same EXEC.
"""

from __future__ import annotations

import json
import socket
import ssl
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

from tidemark_spark.errors import OptionError, SinkRefused, SinkUnavailable
from tidemark_spark.pipeline.sinks.rendering import bytes_of, json_rows, keys_of, texts
from tidemark_spark.pipeline.sinks.table import SinkOptions, TableShape, digest_of, key_text
from tidemark_spark.pipeline.values import KEY, SEQUENCE, Applied, Decision, Digest, Mark, decide

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

    from tidemark_spark.pipeline.values import Change, Mode

PART_ROWS = 8192
"""Rows that are packed and sent at once."""
MSET_ROWS = 512
SCAN_COUNT = 5000
CONNECT_S = 10.0
DROPPING = b"dropping"
"""Instead of a mark: rows are being removed, and whoever finds this goes on with it."""


class RedisSink:
    """A `Sink` of modes mirror and update."""

    def __init__(self, name: str, pipeline: str, options: Mapping[str, Any]) -> None:
        given = SinkOptions(name, options)
        self._name = name
        self._pipeline = pipeline
        self._server = Server.parse(given.text("url", "redis://127.0.0.1:6379/0"), given)
        self._prefix = given.text("prefix", f"{pipeline}.{name}:").encode()
        self._format = given.text("format", "json")
        if self._format not in ("json", "hash"):
            raise given.wrong("format", f"is 'json' or 'hash', not '{self._format}'")
        # The key is in the name; who wants it in the row, too, says what to call it there.
        self._key_column = given.text("key_column", KEY)
        self._key = given.names("key")
        self._timeout_s = given.number("timeout_s", 60, least=1)
        given.done()
        if options.get("mode") == "append":
            raise self._no_append()
        # With the prefix: rows under another one are another cache, which begins with nothing.
        self._mark_key = f"tidemark:mark:{pipeline}.{name}:".encode() + self._prefix
        self._link: Link | None = None

    # Sink ---------------------------------------------------------------------------------------

    def open(self) -> Mark | None:
        self.close()
        self._link = Link(self._name, self._server, self._timeout_s)
        if b"cluster_enabled:1" in self._command(b"INFO", b"cluster"):
            raise SinkRefused(
                sink=self._name,
                problem="this is a Redis Cluster, which has no transactions over all keys; use a Redis that stands alone "
                "(with replicas, if you like)",
            )
        return self._stored()

    def prepare(self, schema: pa.Schema, mode: Mode) -> None:
        self._shape(mode).schema(schema)

    def apply(self, change: Change) -> Applied:
        shape = self._shape(change.mark.mode)
        rows = shape.arrange(change.upserts)
        while True:
            self._command(b"WATCH", self._mark_key)
            if decide(self._stored(), change) is Decision.SKIP:
                self._command(b"UNWATCH")
                return Applied(skipped=True)
            if self._connected().transaction(self._commands(change, shape, rows)):
                return Applied(skipped=False, upserted=rows.num_rows, deleted=change.deletes.num_rows)

    def digest(self) -> Digest:
        link, start = self._connected(), len(self._prefix)
        seen: dict[bytes, int] = {}
        for found in self._scan():
            if self._format == "json":
                values = link.command(b"MGET", *found)
            else:
                values = link.commands([(b"HGET", key, SEQUENCE.encode()) for key in found])
            for key, value in zip(found, values, strict=True):
                if (sequence := self._sequence(value)) is not None:
                    seen[key[start:]] = sequence
                elif link.command(b"EXISTS", key):  # not one that was evicted just now
                    raise SinkRefused(
                        sink=self._name,
                        problem=f"the key '{key_text(key)}' is not a row of this sink; give the sink a prefix of its own",
                    )
        return digest_of([(seen.keys(), seen.values())])

    def reset(self, drop: bool) -> None:
        if not drop:
            self._command(b"DEL", self._mark_key)
            return
        self._command(b"SET", self._mark_key, DROPPING)
        self._finish_drop()

    def close(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    # Rows ---------------------------------------------------------------------------------------

    def _shape(self, mode: Mode) -> TableShape:
        if mode == "append":
            raise self._no_append()
        return TableShape(self._name, mode, self._key_column, self._key)

    def _no_append(self) -> OptionError:
        return OptionError(
            option=f"{self._name}.mode",
            problem="append has no keys, and Redis is nothing but keys; use mode mirror, or update with `key`",
        )

    def _commands(self, change: Change, shape: TableShape, rows: pa.Table) -> Iterator[tuple[bytes, int]]:
        """Everything between MULTI and EXEC, packed, with the number of commands in each part."""
        for at in range(0, rows.num_rows, PART_ROWS):
            part = rows.slice(at, PART_ROWS)
            keys = self._keys(keys_of(part, shape.key))
            if shape.mode == "mirror" and self._key_column == KEY:
                part = part.drop_columns([KEY])
            if self._format == "json":
                yield packed_documents(keys, list(json_rows(part)))
            else:
                yield packed_hashes(keys, part)
        for at in range(0, change.deletes.num_rows, PART_ROWS):
            gone = self._keys(bytes_of(change.deletes.slice(at, PART_ROWS)[KEY]))
            yield packed(b"UNLINK", *gone), 1
        yield packed(b"SET", self._mark_key, change.mark.to_json().encode()), 1

    def _keys(self, keys: list[bytes]) -> list[bytes]:
        prefix = self._prefix
        return [prefix + key for key in keys]

    def _sequence(self, value: bytes | None) -> int | None:
        if value is None:
            return None
        try:
            return int(json.loads(value)[SEQUENCE] if self._format == "json" else value)
        except (ValueError, KeyError, TypeError):
            return None

    # Redis --------------------------------------------------------------------------------------

    def _stored(self) -> Mark | None:
        found = self._command(b"GET", self._mark_key)
        if found == DROPPING:
            self._finish_drop()
            return None
        return None if found is None else Mark.from_json(found)

    def _finish_drop(self) -> None:
        for keys in self._scan():
            self._command(b"UNLINK", *keys)
        self._command(b"DEL", self._mark_key)

    def _scan(self) -> Iterator[list[bytes]]:
        """The keys under the prefix, some of them twice if Redis grows its table meanwhile."""
        pattern = b"".join(
            b"\\" + bytes([byte]) if byte in b"*?[]\\^" else bytes([byte]) for byte in self._prefix
        )
        cursor = b"0"
        while True:
            cursor, keys = self._command(
                b"SCAN", cursor, b"MATCH", pattern + b"*", b"COUNT", b"%d" % SCAN_COUNT
            )
            if rows := [key for key in keys if key != self._mark_key]:
                yield rows
            if cursor == b"0":
                return

    def _command(self, *words: bytes) -> Any:
        return self._connected().command(*words)

    def _connected(self) -> Link:
        if self._link is None or self._link.broken:
            self._link = Link(self._name, self._server, self._timeout_s)
        return self._link


# Packing -------------------------------------------------------------------------------------------


def packed(*words: bytes) -> bytes:
    """One command as Redis reads it."""
    return b"*%d\r\n%b" % (len(words), b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words]))


def packed_documents(keys: Sequence[bytes], documents: Sequence[bytes]) -> tuple[bytes, int]:
    """MSET of a few hundred each."""
    out: list[bytes] = []
    for at in range(0, len(keys), MSET_ROWS):
        pairs = [
            b"$%d\r\n%b\r\n$%d\r\n%b\r\n" % (len(key), key, len(document), document)
            for key, document in zip(keys[at : at + MSET_ROWS], documents[at : at + MSET_ROWS], strict=True)
        ]
        out.append(b"*%d\r\n$4\r\nMSET\r\n" % (2 * len(pairs) + 1))
        out += pairs
    return b"".join(out), -(-len(keys) // MSET_ROWS)


def packed_hashes(keys: Sequence[bytes], rows: pa.Table) -> tuple[bytes, int]:
    """UNLINK of all, then HSET of each; a column that is NULL is no field."""
    columns: list[list[bytes]] = []
    for name in rows.column_names:
        word = name.encode()
        head = b"$%d\r\n%b\r\n" % (len(word), word)
        values = texts(rows[name])
        columns.append(
            [b"" if text is None else b"%b$%d\r\n%b\r\n" % (head, len(text), text) for text in values]
        )
    out, count = [packed(b"UNLINK", *keys)], 1
    for key, fields in zip(keys, zip(*columns, strict=True), strict=True):
        if used := len(fields) - fields.count(b""):
            out.append(
                b"*%d\r\n$4\r\nHSET\r\n$%d\r\n%b\r\n%b" % (2 * used + 2, len(key), key, b"".join(fields))
            )
            count += 1
    return b"".join(out), count


# One connection ------------------------------------------------------------------------------------


class Server:
    """Where Redis is and who we are there."""

    def __init__(
        self, address: tuple[str, int] | str, user: str | None, password: str | None, database: int, tls: bool
    ) -> None:
        self.address = address
        self.user = user
        self.password = password
        self.database = database
        self.tls = tls

    @classmethod
    def parse(cls, url: str, given: SinkOptions) -> Server:
        """redis://user:password@host:port/database, rediss:// for TLS, unix:///path/to/socket?db=0."""
        try:
            parts = urlsplit(url)
            user = unquote(parts.username) if parts.username else None
            password = unquote(parts.password) if parts.password else None
            if parts.scheme == "unix":
                database = int(parse_qs(parts.query).get("db", ["0"])[0])
                return cls(unquote(parts.path), user, password, database, tls=False)
            if parts.scheme in ("redis", "rediss"):
                database = int(parts.path.strip("/") or 0)
                address = parts.hostname or "127.0.0.1", parts.port or 6379
                return cls(address, user, password, database, tls=parts.scheme == "rediss")
        except ValueError:
            pass
        raise given.wrong(
            "url", "must be like redis://user:password@host:6379/0, rediss://… or unix:///path?db=0"
        )

    def __str__(self) -> str:
        return self.address if isinstance(self.address, str) else "{}:{}".format(*self.address)

    def connect(self, timeout_s: float) -> socket.socket:
        if isinstance(self.address, str):
            link = socket.socket(socket.AF_UNIX)
            link.settimeout(CONNECT_S)
            link.connect(self.address)
        else:
            link = socket.create_connection(self.address, CONNECT_S)
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.tls:
                link = ssl.create_default_context().wrap_socket(link, server_hostname=self.address[0])
        link.settimeout(timeout_s)
        return link


class Refused(Exception):
    """Redis answered with an error."""


class Link:
    """A connection that is logged in. It is thrown away when it breaks."""

    QUEUED = b"+QUEUED\r\n"

    def __init__(self, sink: str, server: Server, timeout_s: float) -> None:
        self._sink = sink
        self._server = server
        self._buffer = bytearray()
        self.broken = False
        try:
            self._socket = server.connect(timeout_s)
        except OSError as error:
            raise self._unavailable(str(error)) from None
        try:
            if server.password is not None:
                user = () if server.user is None else (server.user.encode(),)
                self.command(b"AUTH", *user, server.password.encode())
            if server.database:
                self.command(b"SELECT", b"%d" % server.database)
        except BaseException:
            self.close()
            raise

    def command(self, *words: bytes) -> Any:
        """One command and its answer.

        Raises:
            SinkRefused, SinkUnavailable
        """
        return self.commands([words])[0]

    def commands(self, commands: Sequence[tuple[bytes, ...]]) -> list[Any]:
        """Several at once, and their answers."""
        with _Guard(self):
            self._socket.sendall(b"".join([packed(*words) for words in commands]))
            answers = [self._answer() for _ in commands]
        for answer in answers:
            if isinstance(answer, Refused):
                raise self._refusal(str(answer))
        return answers

    def transaction(self, parts: Iterator[tuple[bytes, int]]) -> bool:
        """MULTI, everything, EXEC. False when a watched key has changed: then nothing was done.

        Raises:
            SinkRefused: Redis does not take a command; nothing was done.
            SinkUnavailable: no answer came; all was done, or nothing.
        """
        with _Guard(self):
            self._socket.sendall(packed(b"MULTI"))
            self._queued(1, b"+OK\r\n")
            waiting = 0
            for data, count in parts:
                self._socket.sendall(data)
                # What the part before was answered is here by now: nobody waits for it, and nobody stores it for long.
                self._queued(waiting, self.QUEUED)
                waiting = count
            self._queued(waiting, self.QUEUED)
            self._socket.sendall(packed(b"EXEC"))
            return self._executed()

    def close(self) -> None:
        self.broken = True
        self._socket.close()

    def _queued(self, count: int, answer: bytes) -> None:
        wanted = answer * count
        if not self._fill(len(wanted)):
            raise ConnectionError("Redis closed the connection")
        if self._buffer.startswith(wanted):
            del self._buffer[: len(wanted)]
            return
        answers = [self._answer() for _ in range(count)]
        problem = next(str(one) for one in answers if isinstance(one, Refused))
        self.close()  # with it goes what was queued
        raise self._refusal(problem)

    def _executed(self) -> bool:
        """The answer to EXEC, an answer a line; it may have as many as the batch has rows."""
        head = self._line()
        if head == b"*-1":
            return False
        if head.startswith(b"-"):
            raise self._refusal(head[1:].decode(errors="replace"))
        left = int(head[1:])
        failed: bytes | None = None
        while left:
            if b"\n" not in self._buffer and not self._fill(len(self._buffer) + 1):
                raise ConnectionError("Redis closed the connection")
            end = self._buffer.rfind(b"\n") + 1
            lines = bytes(self._buffer[:end])
            del self._buffer[:end]
            left -= lines.count(b"\n")
            if failed is None and (lines.startswith(b"-") or b"\n-" in lines):
                failed = next(line for line in lines.split(b"\r\n") if line.startswith(b"-"))
        assert left == 0, "nothing else is on its way on this connection"
        if failed is not None:
            # Redis goes on behind a command that fails. None of ours can: each replaces whatever is there.
            raise self._refusal(
                f"{failed[1:].decode(errors='replace')} (in the middle of EXEC: reset the sink with --drop)"
            )
        return True

    def _answer(self) -> Any:
        line = self._line()
        kind, rest = line[:1], line[1:]
        if kind == b"+":
            return rest
        if kind == b":":
            return int(rest)
        if kind == b"-":
            return Refused(rest.decode(errors="replace"))
        if kind == b"$":
            size = int(rest)
            if size < 0:
                return None
            if not self._fill(size + 2):
                raise ConnectionError("Redis closed the connection")
            value = bytes(self._buffer[:size])
            del self._buffer[: size + 2]
            return value
        if kind == b"*":
            return None if rest == b"-1" else [self._answer() for _ in range(int(rest))]
        raise ConnectionError(f"this is not Redis: it says {line[:40]!r}")

    def _line(self) -> bytes:
        start = 0
        while (end := self._buffer.find(b"\r\n", start)) < 0:
            start = max(0, len(self._buffer) - 1)
            if not self._fill(len(self._buffer) + 1):
                raise ConnectionError("Redis closed the connection")
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 2]
        return line

    def _fill(self, size: int) -> bool:
        """Read until so much is there; False at the end of the connection."""
        while len(self._buffer) < size:
            data = self._socket.recv(1 << 18)
            if not data:
                return False
            self._buffer += data
        return True

    def _unavailable(self, problem: str) -> SinkUnavailable:
        return SinkUnavailable(sink=self._sink, problem=f"Redis at {self._server}: {problem}")

    def _refusal(self, problem: str) -> SinkRefused | SinkUnavailable:
        if problem.split(" ", 1)[0] in ("LOADING", "MASTERDOWN", "TRYAGAIN", "BUSY"):
            return self._unavailable(problem)
        return SinkRefused(sink=self._sink, problem=f"Redis at {self._server} says: {problem}")


class _Guard:
    """A connection that fails, or is left in the middle of something, is closed: its next answer would be another's."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def __enter__(self) -> None:
        if self._link.broken:
            raise self._link._unavailable("the connection was closed")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None or isinstance(error, SinkRefused):
            return
        self._link.close()
        if isinstance(error, OSError):
            raise self._link._unavailable(str(error) or type(error).__name__) from None
