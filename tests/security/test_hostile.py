"""What is sent to hurt: names, paths, bodies and slowness."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from urllib.parse import quote, unquote

import pytest
from helpers.api import Api, raw
from helpers.broker import BrokerProcess
from security.routes import CHANGING, CLOSED, ENTRIES, NAMES, READING, example, identity, path_of, query_of

from tidemark.admin import http
from tidemark.admin.routing import Entry

SCRIPT = "<script>alert(1)</script>"
HOSTILE = {
    "html": quote(SCRIPT, safe=""),
    "image": quote('"><img src=x onerror=alert(1)>', safe=""),
    "quotes": quote("'\"`;--", safe=""),
    "slashes": quote("a/b//c/../d", safe=""),
    "dots": "%2e%2e",
    "up": "..%2f..%2f..%2fetc%2fpasswd",
    "backslashes": "..%5c..%5cetc",
    "nul": "a%00b",
    "lines": "a%0d%0aSet-Cookie:%20x=1%0d%0a%0d%0aHTTP%2f1.1%20200%20OK",
    "long": "x" * 8000,
    "not-utf8": "%ff%fe%80",
    "half-a-pair": "%ed%a0%80",
    "half-a-quote": "%2",
    "unicode": quote("\u202ereversed\ufeff\U0001f4a9", safe=""),
    "format": quote("%s%n{0}{{x}}${jndi:ldap://x}", safe=""),
    "empty-ish": "%20",
}
HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path_factory.mktemp("hostile") / "data").start()
    api = Api(process.admin)
    assert api("PUT", "/queues/%2F/a-queue", {}).status_code == 201
    assert api("PUT", "/streams/%2F/a-stream", {}).status_code == 201
    yield process
    process.stop()
    failures = [line for line in process.log_path.read_text().splitlines() if "unexpected" in line]
    assert not failures, failures


@pytest.fixture(scope="module")
def api(broker: BrokerProcess) -> Api:
    return Api(broker.admin)


def check_harmless(answer: object, where: object) -> None:
    """Not a failure, not a page, and nothing of what was sent became a header."""
    status, headers, text = answer.status_code, answer.headers, answer.text  # type: ignore[attr-defined]
    assert status < 500 or (status == 503 and "/health/" in str(where)), (where, status, text[:300])
    assert "html" not in headers.get("content-type", ""), (where, headers)
    assert "set-cookie" not in headers, where
    if text:
        assert headers["content-type"].startswith("application/json"), (where, headers)
        json.loads(text)


# Names ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("entry", [one for one in READING if "{" in one.path], ids=identity)
def test_a_hostile_name_is_only_a_name_that_is_not_there(api: Api, entry: Entry, kind: str) -> None:
    for place in NAMES.findall(entry.path):
        path = path_of(entry, **{place: HOSTILE[kind]}) + query_of(entry)
        answer = api.client.get(path)
        check_harmless(answer, (path[:200], place))
        assert answer.status_code != 403


@pytest.mark.parametrize("kind", HOSTILE)
def test_changing_things_with_hostile_names_does_no_harm(api: Api, kind: str) -> None:
    for entry in CHANGING:
        names = NAMES.findall(entry.path)
        if not names or entry.path.startswith("/tidemark"):
            continue
        path = path_of(entry, **{names[-1]: HOSTILE[kind]})
        answer = api.client.request(entry.method, path, json=example(entry.body))
        check_harmless(answer, identity(entry))


@pytest.mark.parametrize(
    "kind", [kind for kind in HOSTILE if kind not in ("long", "not-utf8", "half-a-pair")]
)
def test_what_has_a_hostile_name_is_listed_by_that_name_and_deleted_again(api: Api, kind: str) -> None:
    # Ends of lines are taken out of the names of queues, as RabbitMQ does it.
    name = f"own-{HOSTILE[kind]}"
    kept = name.replace("%0d", "").replace("%0a", "")
    made = api("PUT", f"/queues/%2F/{name}", {})
    assert made.status_code in (201, 204), made.text
    try:
        assert unquote(kept) in [one["name"] for one in api.get("/queues/%2F")]
        assert api.get(f"/queues/%2F/{kept}")["name"] == unquote(kept)
    finally:
        assert api("DELETE", f"/queues/%2F/{kept}").status_code == 204


@pytest.mark.parametrize("entry", [one for one in READING if one.query], ids=identity)
def test_hostile_questions_are_refused_or_answered_and_never_fail(api: Api, entry: Entry) -> None:
    values = [
        "",
        "-1",
        "0",
        "99999999999999999999999",
        "1e9",
        "NaN",
        "null",
        SCRIPT,
        "%00",
        "%ff",
        "(",
        "(a+)+$",
        "a" * 5000,
    ]
    for query in entry.query:
        for value in values:
            sent = value if value.startswith("%") else quote(value, safe="")
            path = f"{path_of(entry)}?{query.name}={sent}"
            check_harmless(api.client.get(path), path[:200])
    name = entry.query[0].name
    check_harmless(api.client.get(f"{path_of(entry)}?{name}=1&{name}=2&&&=&%"), entry.path)


def test_a_regular_expression_that_never_ends_does_not_hold_the_broker_up(api: Api) -> None:
    api("PUT", f"/queues/%2F/{'a' * 200}", {})
    for pattern in ("(a+)+$", "(a|aa)+$", "(.*)*x", "([a-zA-Z]+)*!"):
        began = time.monotonic()
        check_harmless(api("GET", f"/queues?page=1&name={quote(pattern)}&use_regex=true"), pattern)
        assert time.monotonic() - began < 5
    assert api("GET", "/whoami").status_code == 200


# Paths ----------------------------------------------------------------------------------------------


TRICKS = [
    "/../../../../etc/passwd",
    "/%2e%2e/%2e%2e/%2e%2e/etc/passwd",
    "/..%2f..%2f..%2fetc%2fpasswd",
    "/assets/../../../../../../etc/passwd",
    "/assets/%2e%2e/%2e%2e/app.py",
    "/assets/..%2f..%2fapp.py",
    "/assets/..%5c..%5capp.py",
    "/assets//etc/passwd",
    "/assets/%00/etc/passwd",
    "//etc/passwd",
    "/./././etc/passwd",
    "/etc/passwd",
    "/admin/app.py",
    "/web/index.html",
    "/index.html%00.js",
    "/assets/....//....//etc/passwd",
    "/api/../api/users",
    "/API/users",
    "/api//users",
    "/api/users/..%2f..%2fetc%2fpasswd",
    "/api/%2e%2e/%2e%2e/etc/passwd",
    "http://evil.example/etc/passwd",
    "*",
    "/%",
    "/%zz",
    "/\u00e9",
]


@pytest.mark.parametrize("path", TRICKS)
def test_no_path_leads_out_of_the_page(broker: BrokerProcess, path: str) -> None:
    request = f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()
    answer = raw(broker.admin, request)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.split()[1] in (b"400", b"401", b"404", b"405"), head[:200]
    assert b"root:" not in body and b"import " not in body and b"password" not in body.lower()


def test_the_page_is_there_and_asks_for_no_login(broker: BrokerProcess) -> None:
    """Else the test above would be green for a server that has no files at all."""
    answer = Api(broker.admin, None).client.get("/")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/html")
    assert "'unsafe-inline'" not in answer.headers["content-security-policy"]


@pytest.mark.parametrize("method", ["TRACE", "OPTIONS", "CONNECT", "PATCH", "PROPFIND", "get", "X" * 100])
def test_a_method_that_is_none_is_refused(broker: BrokerProcess, method: str) -> None:
    request = f"{method} /api/whoami HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()
    answer = raw(broker.admin, request)
    assert answer.split()[1] in (b"400", b"405"), answer[:200]


# Headers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", ENTRIES, ids=identity)
def test_every_answer_has_the_headers_that_protect(api: Api, entry: Entry) -> None:
    for visitor in (api, api.anonymous):
        if entry.changes and visitor is api:
            continue
        with visitor.client.stream(entry.method, path_of(entry) + query_of(entry)) as answer:
            check_headers(answer.headers)
            assert "no-store" in answer.headers["cache-control"]


@pytest.mark.parametrize("path", ["/api/nothing", "/nothing", "/", "/favicon.ico", "/api"])
def test_pages_and_errors_have_the_headers_that_protect(api: Api, path: str) -> None:
    check_headers(api.client.get(path).headers)
    check_headers(api.client.request("DELETE", path).headers)


def check_headers(headers: object) -> None:
    for name, value in HEADERS.items():
        assert headers[name] == value, name  # type: ignore[index]
    policy = headers["content-security-policy"]  # type: ignore[index]
    assert "default-src" in policy and "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy and "*" not in policy
    assert "server" not in headers  # type: ignore[operator]


# Bodies ----------------------------------------------------------------------------------------------


BODIES = [entry for entry in CHANGING if entry.body is not None and not entry.path.startswith("/tidemark")]
BAD = {
    "empty": b"",
    "no-json": b"{",
    "list": b"[]",
    "text": b'"x"',
    "number": b"5",
    "null": b"null",
    "nan": b'{"x": NaN}',
    "deep": b'{"a":' * 100_000,
    "deep-and-whole": b'{"arguments":' * 200 + b"{}" + b"}" * 200,
    "deep-list": b'{"arguments": ' + b"[" * 5000 + b"]" * 5000 + b"}",
    "big-number": b'{"x": ' + b"9" * 100_000 + b"}",
    "huge-number": b'{"value": 1e400, "durable": 1e400}',
    "surrogate": b'{"a": "\\ud800"}',
    "not-utf8": b'{"a": "\xff"}',
    "utf16": '{"a": 1}'.encode("utf-16"),
    "nul": b'{"a\\u0000b": "\\u0000"}',
    "twice": b'{"durable": true, "durable": "no"}',
    "many": json.dumps({f"k{n}": n for n in range(20_000)}).encode(),
    "wrong-types": json.dumps(
        {
            name: [{}]
            for name in (
                "durable", "arguments", "type", "password", "tags", "configure", "write", "read", "routing_key",
                "payload", "properties", "count", "ackmode", "encoding", "pattern", "definition", "priority", "apply-to",
                "value", "name", "sequence", "lease_ms", "users", "vhosts", "queues", "action", "member",
            )
        }
    ).encode(),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("entry", BODIES, ids=identity)
def test_a_bad_body_is_refused_and_never_a_failure(api: Api, entry: Entry, kind: str) -> None:
    path = path_of(entry, vhost="nowhere" if "{vhost}" in entry.path and entry.method == "PUT" else "%2F")
    headers = {"Content-Type": "application/json"}
    answer = api.client.request(entry.method, path, content=BAD[kind], headers=headers)
    check_harmless(answer, identity(entry))


@pytest.mark.parametrize("entry", BODIES, ids=identity)
def test_a_body_that_is_too_large_is_refused_before_it_is_read(broker: BrokerProcess, entry: Entry) -> None:
    for length in (entry.body_bytes_max + 1, 10**15):
        request = (
            f"{entry.method} {path_of(entry, vhost='%2F')} HTTP/1.1\r\nHost: x\r\nAuthorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n"
            f"Content-Length: {length}\r\nConnection: close\r\n\r\n"
        )
        with socket.create_connection((broker.admin.host, broker.admin.port), 5) as link:
            link.sendall(request.encode())
            answer = link.recv(65536)
        assert answer.split()[1] in (b"413", b"404", b"400"), (length, answer[:300])


def test_a_body_that_does_not_say_how_large_it_is_ends_at_the_limit(api: Api) -> None:
    def chunks() -> Iterator[bytes]:
        yield b'{"arguments": {"x": "'
        for _ in range(64):
            yield b"x" * 65536

    answer = api.client.request("PUT", "/api/queues/%2F/large", content=chunks())
    assert answer.status_code == 413
    assert api("GET", "/whoami").status_code == 200


def test_a_login_takes_a_small_body_only(api: Api) -> None:
    answer = api.anonymous("POST", "/login", {"username": "guest", "password": "x" * 100_000})
    assert answer.status_code == 413


def test_headers_that_are_too_large_are_refused(broker: BrokerProcess) -> None:
    request = b"GET /api/whoami HTTP/1.1\r\nHost: x\r\n" + b"X-Long: " + b"x" * 300_000 + b"\r\n\r\n"
    answer = raw(broker.admin, request)
    assert not answer or answer.split()[1] in (b"400", b"431")


def test_a_request_smuggled_behind_another_is_refused(broker: BrokerProcess) -> None:
    request = (
        b"POST /api/login HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"0\r\n\r\nGET /api/users HTTP/1.1\r\nHost: x\r\n\r\n"
    )
    answer = raw(broker.admin, request, timeout_s=3)
    assert b" 200 " not in answer


# Slowness ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_whoever_sends_slowly_is_let_go_of_and_others_are_served_meanwhile(
    broker: BrokerProcess, api: Api
) -> None:
    starts = {
        "nothing": b"",
        "half a line": b"GET /api/who",
        "half a head": b"GET /api/whoami HTTP/1.1\r\nHost: x\r\n",
        "half a body": b"PUT /api/queues/%2F/slow HTTP/1.1\r\nHost: x\r\nAuthorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n"
        b"Content-Length: 5000\r\n\r\n{",
        "a body that nobody reads": b"GET /api/whoami HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\n\r\n",
    }
    lasted: dict[str, float] = {}

    def trickle(name: str, start: bytes) -> None:
        began = time.monotonic()
        with socket.create_connection((broker.admin.host, broker.admin.port), 5) as link:
            link.settimeout(0.2)
            try:
                link.sendall(start)
                while time.monotonic() - began < 3 * http.REQUEST_S:
                    if start:
                        link.sendall(b"X" if b"\r\n\r\n" in start else b"a")
                    try:
                        if not link.recv(65536):
                            break
                    except TimeoutError:
                        pass
                    time.sleep(0.3)
            except OSError:
                pass
        lasted[name] = time.monotonic() - began

    threads = [threading.Thread(target=trickle, args=one) for one in starts.items() for _ in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        began = time.monotonic()
        assert api("GET", "/whoami").status_code == 200
        assert time.monotonic() - began < 3
        time.sleep(0.5)
    assert set(lasted) == set(starts)
    assert max(lasted.values()) < 2 * http.REQUEST_S, lasted


@pytest.mark.slow
def test_a_body_that_keeps_coming_may_take_its_time(broker: BrokerProcess) -> None:
    """Else a slow line could import no definitions."""
    body = b'{"users": [' + b" " * 600_000 + b"]}"
    head = (
        f"POST /api/definitions HTTP/1.1\r\nHost: x\r\nAuthorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection((broker.admin.host, broker.admin.port), 60) as link:
        link.sendall(head.encode())
        step, took_s = len(body) // 18 + 1, http.REQUEST_S + 3
        for at in range(0, len(body), step):
            link.sendall(body[at : at + step])
            time.sleep(took_s / 18)
        assert link.recv(65536).split()[1] == b"200"


@pytest.mark.slow
def test_an_answer_that_nobody_reads_is_let_go_of_and_one_that_is_read_slowly_is_not(
    broker: BrokerProcess, api: Api
) -> None:
    made = api("PUT", "/queues/%2F/unread", {})
    assert made.status_code in (201, 204)
    message = {"routing_key": "unread", "payload": "x" * (12 << 20)}
    for _ in range(2):  # one for each, should they ask at the same moment
        assert api("POST", "/exchanges/%2F/amq.default/publish", message).json() == {"routed": True}
    body = b'{"count": 1, "ackmode": "ack_requeue_true"}'
    request = (
        b"POST /api/queues/%2F/unread/get HTTP/1.1\r\nHost: x\r\nAuthorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n"
        b"Connection: close\r\nContent-Length: " + str(len(body)).encode() + b"\r\n\r\n" + body
    )
    got: dict[str, int] = {}

    def read(name: str, wait_s: float, pause_s: float) -> None:
        with socket.socket() as link:
            link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
            link.connect((broker.admin.host, broker.admin.port))
            link.sendall(request)
            time.sleep(wait_s)
            got[name] = 0
            with contextlib.suppress(ConnectionResetError):
                while part := link.recv(65536):
                    got[name] += len(part)
                    time.sleep(pause_s)

    long_s = http.UNREAD_S + 4
    pause_s = long_s / ((12 << 20) / 32768)
    readers = [
        threading.Thread(target=read, args=args) for args in (("late", long_s, 0.0), ("slowly", 0.0, pause_s))
    ]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    api("DELETE", "/queues/%2F/unread")
    assert got["slowly"] > 12 << 20
    assert got["late"] < 12 << 20


def test_every_closed_endpoint_is_among_those_that_are_looked_at() -> None:
    assert {identity(one) for one in CLOSED} >= {identity(one) for one in (*READING, *CHANGING)}
