"""A small OpenSearch: a real HTTP server with the semantics that a sink relies on, and nothing else.

It keeps documents with external versions (`external_gte`, also of deletes), sequence numbers and primary terms,
answers bulk requests item by item, shows searches only what was refreshed, refuses values that do not fit the mapping,
and is busy (429) when a test says so. It is not OpenSearch: what is proven with it is that the sink keeps to the
documented rules of the bulk API.
"""

from __future__ import annotations

import base64
import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

NUMBERS = {"byte", "short", "integer", "long", "float", "double", "scaled_float"}


@dataclass
class Stored:
    source: dict[str, Any] | None
    """None: deleted, and its version is kept."""
    version: int
    seq_no: int


@dataclass
class Index:
    mappings: dict[str, Any]
    settings: dict[str, Any]
    documents: dict[str, Stored] = field(default_factory=dict)
    visible: dict[str, Stored] = field(default_factory=dict)
    seq_no: int = 0

    def refresh(self) -> None:
        self.visible = {name: one for name, one in self.documents.items() if one.source is not None}


class OpenSearchServer:
    def __init__(self) -> None:
        self.indices: dict[str, Index] = {}
        self.lock = threading.RLock()
        self.requests: list[tuple[str, str]] = []
        self.busy_requests = 0
        """So many requests from now are answered 429."""
        self.busy_items = 0
        """So many items of bulk requests from now are answered 429."""
        self.fail_after_bulk = 0
        """So many bulk requests from now are carried out and not answered: the connection breaks."""
        self.password: str | None = None
        self._scrolls: dict[str, list[dict[str, Any]]] = {}
        handler = type("Handler", (_Handler,), {"world": self})
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._http.daemon_threads = True
        threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    def sources(self, index: str) -> dict[str, dict[str, Any]]:
        """What a search would see."""
        return {
            name: one.source for name, one in self.indices[index].visible.items() if one.source is not None
        }

    # What can be asked --------------------------------------------------------------------------

    def answer(self, method: str, target: str, body: bytes) -> tuple[int, dict[str, Any]]:
        parts = urlsplit(target)
        path = [unquote(word) for word in parts.path.split("/")[1:]]
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        self.requests.append((method, parts.path))
        if self.busy_requests:
            self.busy_requests -= 1
            return 429, _error("rejected_execution_exception", "too many requests")
        match method, path:
            case "POST", ["_search", "scroll"]:
                return self._next_page(json.loads(body)["scroll_id"])
            case "DELETE", ["_search", "scroll"]:
                self._scrolls.pop(json.loads(body)["scroll_id"], None)
                return 200, {"succeeded": True}
            case "PUT", [name]:
                return self._create(name, json.loads(body or b"{}"))
        index = self.indices.get(path[0])
        if index is None:
            return 404, _error("index_not_found_exception", f"no such index [{path[0]}]")
        match method, path[1:]:
            case "HEAD", []:
                return 200, {}
            case "DELETE", []:
                del self.indices[path[0]]
                return 200, {"acknowledged": True}
            case "GET", ["_mapping"]:
                return 200, {path[0]: {"mappings": index.mappings}}
            case "PUT", ["_mapping"]:
                return self._extend(index, json.loads(body)["properties"])
            case "POST", ["_refresh"]:
                index.refresh()
                return 200, {"_shards": {"failed": 0}}
            case "POST", ["_bulk"]:
                return 200, self._bulk(index, body)
            case "POST", ["_search"]:
                return self._search(index, json.loads(body))
            case "GET", ["_doc", name]:
                one = index.documents.get(name)
                if one is None or one.source is None:
                    return 404, {"_id": name, "found": False}
                return 200, {"_id": name, "found": True, "_source": one.source, "_version": one.version,
                             "_seq_no": one.seq_no, "_primary_term": 1}  # fmt: skip
            case "PUT", ["_doc", name]:
                return self._put(index, name, query, json.loads(body))
            case "DELETE", ["_doc", name]:
                return (200, {}) if index.documents.pop(name, None) else (404, {"result": "not_found"})
        return 400, _error("illegal_argument_exception", f"this server does not know {method} {target}")

    def _create(self, name: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if name in self.indices:
            return 400, _error("resource_already_exists_exception", f"index [{name}] already exists")
        self.indices[name] = Index(body.get("mappings", {}), body.get("settings", {}))
        return 200, {"acknowledged": True}

    def _extend(self, index: Index, properties: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        there = index.mappings.setdefault("properties", {})
        for name, mapping in properties.items():
            if name in there and there[name].get("type") != mapping.get("type"):
                return 400, _error("illegal_argument_exception", f"mapper [{name}] cannot be changed")
        there.update(properties)
        return 200, {"acknowledged": True}

    def _put(
        self, index: Index, name: str, query: dict[str, str], source: dict[str, Any]
    ) -> tuple[int, dict[str, Any]]:
        one = index.documents.get(name)
        there = one is not None and one.source is not None
        if query.get("op_type") == "create" and there:
            return 409, _error("version_conflict_engine_exception", f"[{name}]: document already exists")
        if "if_seq_no" in query and (one is None or not there or int(query["if_seq_no"]) != one.seq_no):
            return 409, _error(
                "version_conflict_engine_exception", f"[{name}]: required seqNo does not match"
            )
        index.seq_no += 1
        index.documents[name] = Stored(source, 1 if one is None else one.version + 1, index.seq_no)
        return 201, {"_id": name, "_seq_no": index.seq_no, "_primary_term": 1}

    def _bulk(self, index: Index, body: bytes) -> dict[str, Any]:
        assert body.endswith(b"\n"), "the bulk API wants a newline at the end"
        lines = iter(body.split(b"\n")[:-1])
        items = []
        for line in lines:
            [(verb, action)] = json.loads(line).items()
            source = json.loads(next(lines)) if verb == "index" else None
            items.append({verb: {"_id": action["_id"]} | self._item(index, action, source)})
        return {
            "errors": any(one["status"] >= 300 for item in items for one in item.values()),
            "items": items,
        }

    def _item(self, index: Index, action: dict[str, Any], source: dict[str, Any] | None) -> dict[str, Any]:
        if self.busy_items:
            self.busy_items -= 1
            return {"status": 429} | _error("rejected_execution_exception", "the queue is full")
        if len(action["_id"].encode()) > 512:
            return {"status": 400} | _error("illegal_argument_exception", "id is too long")
        for name, value in (source or {}).items():
            if problem := _misfit(index.mappings.get("properties", {}).get(name, {}), value):
                found = _error("mapper_parsing_exception", f"failed to parse field [{name}]")
                found["error"]["caused_by"] = {"reason": problem}
                return {"status": 400} | found
        assert action["version_type"] == "external_gte"
        one = index.documents.get(action["_id"])
        if one is not None and one.version > action["version"]:
            reason = f"current version [{one.version}] is higher than the one provided [{action['version']}]"
            return {"status": 409} | _error("version_conflict_engine_exception", reason)
        index.seq_no += 1
        index.documents[action["_id"]] = Stored(source, action["version"], index.seq_no)
        if source is None:
            there = one is not None and one.source is not None
            return {"status": 200 if there else 404, "result": "deleted" if there else "not_found"}
        return {"status": 200 if one is not None else 201}

    def _search(self, index: Index, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        hits = [{"_id": name, "_version": one.version} for name, one in index.visible.items()]
        name = f"scroll-{len(self.requests)}"
        self._scrolls[name] = hits
        return self._next_page(name, body["size"])

    def _next_page(self, name: str, size: int = 2) -> tuple[int, dict[str, Any]]:
        # Later pages are short, so that there are some in small tests, too.
        hits = self._scrolls[name]
        page, self._scrolls[name] = hits[:size], hits[size:]
        return 200, {"_scroll_id": name, "hits": {"hits": page}}


def _misfit(mapping: dict[str, Any], value: Any) -> str | None:
    kind = mapping.get("type")
    if isinstance(value, list):
        return next((problem for one in value if (problem := _misfit(mapping, one))), None)
    if kind in NUMBERS and isinstance(value, str):
        return f'For input string: "{value}"'
    if kind in ("byte", "short", "integer", "long") and isinstance(value, int):
        bits = {"byte": 7, "short": 15, "integer": 31, "long": 63}[kind]
        if not -(1 << bits) <= value < 1 << bits:
            return f"Value [{value}] is out of range"
    is_immense = kind == "keyword" and isinstance(value, str) and len(value.encode()) > 32766
    if is_immense and len(value) <= mapping.get("ignore_above", 1 << 31):
        return "immense term"
    return None


def _error(kind: str, reason: str) -> dict[str, Any]:
    return {"error": {"type": kind, "reason": reason}}


class _Handler(BaseHTTPRequestHandler):
    world: OpenSearchServer
    protocol_version = "HTTP/1.1"

    def handle_any(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        world = self.world
        if world.password is not None:
            wanted = "Basic " + base64.b64encode(f"admin:{world.password}".encode()).decode()
            if self.headers.get("authorization") != wanted:
                self._reply(401, {})
                return
        with world.lock:
            status, found = world.answer(self.command, self.path, body)
            if self.path.endswith("/_bulk") and world.fail_after_bulk:
                world.fail_after_bulk -= 1
                self.close_connection = True
                return
        self._reply(status, found)

    def _reply(self, status: int, found: dict[str, Any]) -> None:
        data = b"" if self.command == "HEAD" else json.dumps(found).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any  # noqa: N815

    def log_message(self, format: str, *args: Any) -> None:
        return
