"""Rows as documents of an OpenSearch index, through its bulk API.

OpenSearch has no transactions. Instead every document carries the sequence of its row as its external version
(`external_gte`), deletes too: whatever is sent again, by whom, in which order, a document ends as its newest version.
A batch is: read the mark, decide, send the documents in bulk, refresh, and last write the mark, under the condition
that it is still the one that was read. So the mark is never ahead of the documents. Until the mark is written searches may
see some of the batch, and after a crash they do until the batch is repeated: that is what this system can give.

A document that is newer than its row can only be the work of another writer: a newer run of this pipeline (then this one is the
zombie, and stops), or something else that shares the index. Both are errors, never skipped in silence.

Invariant: the index holds at least what the mark says, and each document at its newest version.
"""

from __future__ import annotations

import base64
import json
import random
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import httpx
import pyarrow as pa

from tidemark_spark.errors import OptionError, RowRefused, SchemaDrift, SinkRefused, SinkUnavailable
from tidemark_spark.pipeline.sinks.rendering import bytes_of, json_rows, keys_of
from tidemark_spark.pipeline.sinks.table import SinkOptions, TableShape, digest_of, key_text
from tidemark_spark.pipeline.values import KEY, SEQUENCE, Applied, Decision, Digest, Mark, decide

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tidemark_spark.pipeline.values import Change, Mode

MARKS = "tidemark-pipeline-marks"
"""The index that holds the marks of all sinks."""
ID_BYTES_MAX = 512
KEYWORD_CHARACTERS_MAX = 8191
"""Of a longer text only its words are found, not the whole: a term has at most 32,766 bytes, four a character."""
SCROLL_ROWS = 5000
BUSY = (429, 502, 503, 504)
PAUSE_S_MAX = 5.0


class OpenSearchSink:
    """A `Sink` of all modes."""

    def __init__(self, name: str, pipeline: str, options: Mapping[str, Any]) -> None:
        given = SinkOptions(name, options)
        self._name = name
        self._pipeline = pipeline
        self._url = given.text("url", "http://127.0.0.1:9200")
        if urlsplit(self._url).scheme not in ("http", "https"):
            raise given.wrong("url", "must be like https://user:password@host:9200")
        self._ca_file: str | None = given.text("ca_file") if "ca_file" in options else None
        self._index = given.text("index")
        if (
            self._index != self._index.lower()
            or self._index.startswith(("_", "-", "+"))
            or self._index == MARKS
        ):
            raise given.wrong(
                "index", f"'{self._index}' cannot be the name of an index: small letters, no _ in front"
            )
        self._key_column = given.text("key_column", "key")
        self._key = given.names("key")
        self._text = given.names("text")
        self._exact = given.names("exact")
        if both := set(self._text) & set(self._exact):
            raise given.wrong("exact", f"names '{min(both)}', and so does text; a column is one of them")
        self._settings = dict(given.table("settings"))
        self._bulk_bytes = given.number("bulk_bytes", 5 << 20, least=1 << 10)
        self._timeout_s = given.number("timeout_s", 60, least=1)
        given.done()
        self._http: httpx.Client | None = None
        self._key_is_binary = False

    # Sink ---------------------------------------------------------------------------------------

    def open(self) -> Mark | None:
        self.close()
        stored = self._stored()
        return stored.mark

    def prepare(self, schema: pa.Schema, mode: Mode) -> None:
        shape = self._shape(mode)
        named = shape.schema(schema)
        wanted = {field.name: self._mapping(field) for field in named}
        if mode == "mirror":
            wanted[self._key_column] = {"type": "keyword", "ignore_above": KEYWORD_CHARACTERS_MAX}
            wanted[SEQUENCE] = {"type": "long"}
            self._key_is_binary = not pa.types.is_string(schema.field(KEY).type)
        owner = {"pipeline": self._pipeline, "sink": self._name, "binary_key": self._key_is_binary}
        found = self._call("GET", f"/{self._index}/_mapping", missing=True)
        if found is None:
            if self._stored().mark is not None:
                problem = f"index '{self._index}' was deleted, but its mark says that it has rows"
                raise SinkRefused(sink=self._name, problem=f"{problem}; start over with reset --drop")
            # How long a delete keeps its version, against zombies: by default that is a minute.
            settings = {"index": {"gc_deletes": "1h"}} | self._settings
            body = {
                "settings": settings,
                "mappings": {"dynamic": False, "_meta": owner, "properties": wanted},
            }
            self._call("PUT", f"/{self._index}", body)
            return
        mappings = _mappings(found)
        meta = mappings.get("_meta") or {}
        if (meta.get("pipeline"), meta.get("sink")) != (self._pipeline, self._name):
            problem = f"index '{self._index}' is not this sink's (its mapping has no such _meta); choose another name"
            raise SinkRefused(sink=self._name, problem=problem)
        there = mappings.get("properties") or {}
        for name, mapping in wanted.items():
            if name in there and _brief(there[name]) != _brief(mapping):
                raise SchemaDrift(sink=self._name, column=name, has=_brief(there[name]), gets=_brief(mapping))
        if new := {name: mapping for name, mapping in wanted.items() if name not in there}:
            self._call("PUT", f"/{self._index}/_mapping", {"properties": new})

    def apply(self, change: Change) -> Applied:
        shape = self._shape(change.mark.mode)
        rows = shape.arrange(change.upserts)
        actions = self._actions(shape, rows, change)
        while True:
            stored = self._stored()
            if decide(stored.mark, change) is Decision.SKIP:
                return Applied(skipped=True)
            if newer := self._send(actions):
                if decide(self._stored().mark, change) is Decision.SKIP:
                    return Applied(skipped=True)
                raise SinkRefused(
                    sink=self._name,
                    problem=f"the document '{newer}' is newer than its row: another run of this pipeline is writing to index "
                    f"'{self._index}' (stop one of them), or the index is of another stream (reset --drop)",
                )
            self._call("POST", f"/{self._index}/_refresh")
            if self._store(stored, {"mark": change.mark.to_json()}):
                return Applied(skipped=False, upserted=rows.num_rows, deleted=change.deletes.num_rows)

    def digest(self) -> Digest:
        found = self._call("GET", f"/{self._index}/_mapping", missing=True)
        if found is None:
            return digest_of([])
        binary = (_mappings(found).get("_meta") or {}).get("binary_key", False)
        self._call("POST", f"/{self._index}/_refresh")
        keys: list[bytes] = []
        versions: list[int] = []
        for hit in self._scroll():
            keys.append(base64.urlsafe_b64decode(hit["_id"]) if binary else hit["_id"].encode())
            versions.append(hit["_version"])
        return digest_of([(keys, versions)])

    def reset(self, drop: bool) -> None:
        stored = self._stored()
        if not drop:
            self._call("DELETE", self._mark_path, missing=True)
        elif self._store(stored, {"dropping": True}):
            self._finish_drop()
        else:
            raise SinkUnavailable(
                sink=self._name, problem="its mark moved meanwhile; stop the pipeline first"
            )

    def close(self) -> None:
        if self._http is not None:
            self._http.close()
            self._http = None

    # Documents ----------------------------------------------------------------------------------

    def _shape(self, mode: Mode) -> TableShape:
        return TableShape(self._name, mode, self._key_column, self._key)

    def _actions(self, shape: TableShape, rows: pa.Table, change: Change) -> list[Action]:
        mark = change.mark
        if shape.mode == "mirror":
            names = [self._id(key) for key in bytes_of(change.upserts[KEY])]
            versions = rows[SEQUENCE].to_pylist()
        else:
            # Spark computes a repeated batch again: the same rows, maybe in another order. All of them are written again.
            names = (
                [key.decode() for key in keys_of(rows, shape.key)]
                if shape.key
                else [f"{mark.query}-{mark.batch}-{at}" for at in range(rows.num_rows)]
            )
            versions = [mark.batch + 1] * rows.num_rows
        actions: list[Action] = []
        for at, (name, version, document) in enumerate(zip(names, versions, json_rows(rows), strict=True)):
            if not name or len(name.encode()) > ID_BYTES_MAX:
                raise shape.refused(rows, at, f"the id of a document has 1 to {ID_BYTES_MAX} bytes")
            actions.append(Action(name, version, document))
        for key, version in zip(
            bytes_of(change.deletes[KEY]), change.deletes[SEQUENCE].to_pylist(), strict=True
        ):
            if (
                0 < len(name := self._id(key)) <= ID_BYTES_MAX
            ):  # one that could not be put need not be deleted
                actions.append(Action(name, version, None))
        return actions

    def _id(self, key: bytes) -> str:
        return base64.urlsafe_b64encode(key).decode() if self._key_is_binary else key.decode()

    def _mapping(self, field: pa.Field) -> dict[str, Any]:
        kind, types = field.type, pa.types
        if types.is_list(kind) or types.is_large_list(kind):
            return self._mapping(pa.field(field.name, kind.value_type))
        if types.is_string(kind) or types.is_large_string(kind):
            if field.name in self._text or (not self._text and field.name not in self._exact):
                exact = {"type": "keyword", "ignore_above": 256}
                return {"type": "text", "fields": {"keyword": exact}}
            return {"type": "keyword", "ignore_above": KEYWORD_CHARACTERS_MAX}
        if types.is_struct(kind):
            return {"properties": {inner.name: self._mapping(inner) for inner in kind}}
        if types.is_map(kind):
            return {"type": "object", "dynamic": True}
        if types.is_decimal(kind) and kind.precision <= 15 and kind.scale >= 0:
            return {"type": "scaled_float", "scaling_factor": 10**kind.scale}
        for is_such, name in (
            (types.is_boolean, "boolean"),
            (types.is_int8, "byte"),
            (types.is_int16, "short"),
            (types.is_int32, "integer"),
            (types.is_integer, "long"),
            (types.is_float32, "float"),
            (types.is_floating, "double"),
            (types.is_decimal, "double"),
            (types.is_timestamp, "date"),
            (types.is_date, "date"),
            (types.is_binary, "binary"),
        ):
            if is_such(kind):
                return {"type": name}
        return {"type": "keyword", "ignore_above": KEYWORD_CHARACTERS_MAX}

    # Bulk ---------------------------------------------------------------------------------------

    def _send(self, actions: Sequence[Action]) -> str | None:
        """Send all; the id of a document that is newer than its row, if there is one.

        Raises:
            RowRefused: OpenSearch does not take a document.
            SinkUnavailable: it stays busy.
        """
        newer: str | None = None
        for part in self._parts(actions):
            waiting, pause = part, Pause(self._timeout_s)
            while waiting:
                answer = self._call(
                    "POST", f"/{self._index}/_bulk", b"".join([one.packed() for one in waiting])
                )
                busy: list[Action] = []
                problem = ""
                for action, item in zip(waiting, answer["items"], strict=True):
                    [result] = item.values()
                    status = result["status"]
                    if status in BUSY:
                        busy.append(action)
                        problem = _reason(result)
                    elif status == 409:
                        newer = action.name
                    elif status >= 300 and not (status == 404 and action.document is None):
                        raise RowRefused(
                            sink=self._name,
                            key=self._shown(action.name),
                            sequence=action.version,
                            problem=_reason(result),
                        )
                if busy and not pause.wait():
                    raise self._unavailable(f"it takes no documents: {problem}")
                waiting = busy
        return newer

    def _parts(self, actions: Sequence[Action]) -> Iterator[list[Action]]:
        part: list[Action] = []
        size = 0
        for action in actions:
            length = 120 + len(action.document or b"")
            if part and size + length > self._bulk_bytes:
                yield part
                part, size = [], 0
            part.append(action)
            size += length
        if part:
            yield part

    def _shown(self, name: str) -> str:
        return key_text(base64.urlsafe_b64decode(name)) if self._key_is_binary else name

    def _scroll(self) -> Iterator[dict[str, Any]]:
        body = {
            "size": SCROLL_ROWS,
            "version": True,
            "_source": False,
            "query": {"match_all": {}},
            "sort": ["_doc"],
        }
        page = self._call("POST", f"/{self._index}/_search?scroll=5m", body)
        try:
            while hits := page["hits"]["hits"]:
                yield from hits
                page = self._call(
                    "POST", "/_search/scroll", {"scroll": "5m", "scroll_id": page["_scroll_id"]}
                )
        finally:
            self._call("DELETE", "/_search/scroll", {"scroll_id": page["_scroll_id"]}, missing=True)

    # The mark -----------------------------------------------------------------------------------

    @property
    def _mark_path(self) -> str:
        # With the index: another one begins with nothing.
        return f"/{MARKS}/_doc/{quote(f'{self._pipeline}/{self._name}/{self._index}', safe='')}"

    def _stored(self) -> Stored:
        found = self._call("GET", self._mark_path, missing=True)
        if found is None or not found.get("found", True):
            return Stored(None, None)
        place = found["_seq_no"], found["_primary_term"]
        source = found["_source"]
        if source.get("dropping"):
            self._finish_drop()
            return Stored(None, None)
        return Stored(Mark.from_json(source["mark"]), place)

    def _store(self, before: Stored, source: dict[str, Any]) -> bool:
        """Write the mark if it is still as it was read; False if not."""
        if self._call("HEAD", f"/{MARKS}", missing=True) is None:
            body = {"settings": {"index": {"hidden": True}}, "mappings": {"dynamic": False}}
            self._call("PUT", f"/{MARKS}", body, exists=True)
        if before.place is None:
            condition = "op_type=create"
        else:
            condition = f"if_seq_no={before.place[0]}&if_primary_term={before.place[1]}"
        return self._call("PUT", f"{self._mark_path}?{condition}", source, conflict=True) is not None

    def _finish_drop(self) -> None:
        self._call("DELETE", f"/{self._index}", missing=True)
        self._call("DELETE", self._mark_path, missing=True)

    # HTTP ---------------------------------------------------------------------------------------

    def _call(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | bytes | None = None,
        *,
        missing: bool = False,
        conflict: bool = False,
        exists: bool = False,
    ) -> Any:
        """One request; again while the server is busy. None for what may be missing, in conflict, or there already."""
        pause = Pause(self._timeout_s)
        headers = {"content-type": "application/x-ndjson" if isinstance(body, bytes) else "application/json"}
        content = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        while True:
            try:
                answer = self._client().request(method, path, content=content, headers=headers)
            except httpx.TransportError as error:
                raise self._unavailable(str(error) or type(error).__name__) from None
            status = answer.status_code
            if status < 300:
                return answer.json() if answer.content else {}
            if missing and status == 404:
                return None
            if conflict and status == 409:
                return None
            if exists and status == 400 and "resource_already_exists_exception" in answer.text:
                return None
            if status in BUSY:
                if not pause.wait():
                    raise self._unavailable(f"HTTP {status} for {self._timeout_s} s")
                continue
            if status in (401, 403):
                raise SinkRefused(
                    sink=self._name, problem=f"OpenSearch refuses the login (HTTP {status}); see url"
                )
            problem = _sentence(answer)
            raise SinkRefused(
                sink=self._name, problem=f"OpenSearch answers {method} {path.split('?')[0]}: {problem}"
            )

    def _client(self) -> httpx.Client:
        if self._http is None:
            parts = urlsplit(self._url)
            host = parts.netloc.rpartition("@")[2]
            auth = (parts.username, parts.password or "") if parts.username else None
            try:
                self._http = httpx.Client(
                    base_url=f"{parts.scheme}://{host}{parts.path.rstrip('/')}",
                    auth=auth,
                    timeout=self._timeout_s,
                    # Certificates take a third of a second to load: not for nothing.
                    verify=parts.scheme == "https" and (self._ca_file or True),
                )
            except OSError as error:
                raise OptionError(option=f"{self._name}.ca_file", problem=str(error)) from None
        return self._http

    def _unavailable(self, problem: str) -> SinkUnavailable:
        return SinkUnavailable(
            sink=self._name,
            problem=f"OpenSearch at {urlsplit(self._url).netloc.rpartition('@')[2]}: {problem}",
        )


class Action:
    """A document to put, or (without one) to delete."""

    __slots__ = ("document", "name", "version")

    def __init__(self, name: str, version: int, document: bytes | None) -> None:
        self.name = name
        self.version = version
        self.document = document

    def packed(self) -> bytes:
        verb = "delete" if self.document is None else "index"
        name = json.dumps(self.name)
        head = (
            f'{{"{verb}":{{"_id":{name},"version":{self.version},"version_type":"external_gte"}}}}\n'.encode()
        )
        return head if self.document is None else b"%b%b\n" % (head, self.document)


class Stored:
    """The mark, and where its document is: what a condition on it names."""

    def __init__(self, mark: Mark | None, place: tuple[int, int] | None) -> None:
        self.mark = mark
        self.place = place


class Pause:
    """Longer and longer waits, up to a time in all."""

    def __init__(self, limit_s: float) -> None:
        self._end = time.monotonic() + limit_s
        self._next_s = 0.1

    def wait(self) -> bool:
        """Wait a little; False when the time is over."""
        if time.monotonic() + self._next_s > self._end:
            return False
        time.sleep(self._next_s * random.uniform(0.5, 1))
        self._next_s = min(PAUSE_S_MAX, self._next_s * 2)
        return True


def _mappings(found: dict[str, Any]) -> dict[str, Any]:
    """Of the answer to _mapping; its one key is the index, or what the alias stands for."""
    [one] = found.values()
    mappings: dict[str, Any] = one["mappings"]
    return mappings


def _brief(mapping: dict[str, Any]) -> str:
    """A mapping as far as it must not change."""
    if "properties" in mapping and mapping.get("type", "object") == "object":
        inner = ", ".join(f"{name}: {_brief(one)}" for name, one in sorted(mapping["properties"].items()))
        return f"object<{inner}>"
    if mapping.get("type") == "scaled_float":
        return f"scaled_float({float(mapping['scaling_factor']):g})"
    return str(mapping.get("type", "object"))


def _reason(result: dict[str, Any]) -> str:
    error = result.get("error") or {}
    cause = error.get("caused_by") or {}
    return (
        ": ".join(text for text in (error.get("reason"), cause.get("reason")) if text)
        or f"status {result['status']}"
    )


def _sentence(answer: httpx.Response) -> str:
    try:
        found = answer.json()
        error = found["error"]
        return error if isinstance(error, str) else _reason({"error": error, "status": answer.status_code})
    except (ValueError, KeyError, TypeError):
        return f"HTTP {answer.status_code}"
