"""Logging in at the management API: tokens, the cookie, what another site may not do, and patience with wrong passwords."""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from helpers.amqp import eventually
from helpers.api import Api
from helpers.broker import BrokerProcess

from tidemark.admin.audit import without_secrets
from tidemark.admin.logins import TOKENS_EACH_MAX, Tokens
from tidemark.broker.access import Access
from tidemark.model.wiring import UserSpec

FAILURES_MAX = 3


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path_factory.mktemp("login") / "data").start()
    yield process
    process.stop()


@pytest.fixture
def api(broker: BrokerProcess) -> Api:
    return Api(broker.admin)


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


# Tokens -----------------------------------------------------------------------------------------------


def test_a_login_gives_a_token_and_a_cookie_that_scripts_cannot_read(api: Api) -> None:
    answer = api.anonymous("POST", "/login", {"username": "guest", "password": "guest"})

    assert answer.status_code == 200
    found = answer.json()
    assert (found["name"], found["tags"]) == ("guest", ["administrator"])
    assert found["expires_ms"] > time.time() * 1000
    parts = [part.strip() for part in answer.headers["set-cookie"].lower().split(";")]
    assert api.cookie(found["token"])["Cookie"].lower() in parts
    assert {"httponly", "samesite=strict", "path=/"} <= set(parts)
    assert "secure" not in parts, "without TLS the browser would not send it back"


def test_a_token_opens_what_the_password_opens(api: Api) -> None:
    token = api.token()
    for header in (bearer(token), api.cookie(token)):
        assert api.anonymous.get("/whoami", headers=header)["name"] == "guest"


def test_the_cookie_of_another_broker_on_this_host_is_not_ours(api: Api) -> None:
    header = {"Cookie": f"tidemark-{api.address.port + 1}={api.token()}"}
    assert api.anonymous("GET", "/whoami", headers=header).status_code == 401


@pytest.mark.parametrize("token", ["x", "A" * 43, "\x7f", "é"])
def test_a_token_that_was_never_given_opens_nothing(api: Api, token: str) -> None:
    headers = {"Authorization": b"Bearer " + token.encode()}
    assert api.anonymous("GET", "/whoami", headers=headers).status_code == 401


@pytest.mark.parametrize(
    "header", [b"Basic \xc3\xa9", b"Basic //8=", b"Basic Z3Vlc3Q=", b"Digest x", b"Basic", b"\xff"]
)
def test_a_header_that_is_no_login_opens_nothing_and_breaks_nothing(api: Api, header: bytes) -> None:
    answer = api.anonymous("GET", "/whoami", headers={"Authorization": header})
    assert answer.status_code == 401


def test_a_logout_ends_the_token_and_takes_the_cookie_away(api: Api) -> None:
    token, other = api.token(), api.token()

    answer = api.anonymous("DELETE", "/login", headers={**api.cookie(token), "X-Tidemark": "1"})

    assert answer.status_code == 204
    assert (
        f'tidemark-{api.address.port}=""' in answer.headers["set-cookie"]
        and "max-age=0" in answer.headers["set-cookie"].lower()
    )
    assert api.anonymous("GET", "/whoami", headers=bearer(token)).status_code == 401
    assert api.anonymous("GET", "/whoami", headers=bearer(other)).status_code == 200


@pytest.mark.parametrize(
    "change",
    [{"password": "another", "tags": "management"}, {"password": "secret", "tags": "administrator"}, None],
    ids=["password", "tags", "deleted"],
)
def test_a_token_ends_when_its_user_changes_or_goes(api: Api, change: dict[str, str] | None) -> None:
    visitor = api.user("management")
    assert visitor.login is not None
    token = visitor.token()
    assert api.anonymous("GET", "/whoami", headers=bearer(token)).status_code == 200

    name = visitor.login[0]
    changed = api("DELETE", f"/users/{name}") if change is None else api("PUT", f"/users/{name}", change)

    assert changed.status_code == 204
    assert api.anonymous("GET", "/whoami", headers=bearer(token)).status_code == 401
    if change is None:
        # One who comes back under the same name is somebody else.
        api("PUT", f"/users/{name}", {"password": "secret", "tags": "management"})
        assert api.anonymous("GET", "/whoami", headers=bearer(token)).status_code == 401


def test_a_token_ends_with_its_time(start_broker: Callable[..., BrokerProcess]) -> None:
    api = Api(start_broker("--set", "admin.login_s=1").admin)
    token = api.token()
    assert api.anonymous("GET", "/whoami", headers=bearer(token)).status_code == 200
    eventually(lambda: api.anonymous("GET", "/whoami", headers=bearer(token)).status_code == 401)


def test_a_user_without_a_tag_gets_no_token(api: Api) -> None:
    visitor = api.user("")
    assert visitor.login is not None
    body = {"username": visitor.login[0], "password": visitor.login[1]}
    answer = api.anonymous("POST", "/login", body)
    assert answer.status_code == 401
    assert answer.json()["reason"] == "Not management user"
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize(
    "body", [{}, {"username": "guest"}, {"username": 1, "password": "x"}, {"password": "guest"}]
)
def test_a_login_that_is_none_is_400(api: Api, body: dict[str, object]) -> None:
    assert api.anonymous("POST", "/login", body).status_code == 400


def test_whoever_has_too_many_tokens_loses_the_oldest() -> None:
    access, user = Access(()), UserSpec("ada", "hash", ("management",))
    access.users["ada"] = user
    tokens = Tokens(1000)
    first, _ = tokens.issue(user, 0)
    others = [tokens.issue(user, 0)[0] for _ in range(TOKENS_EACH_MAX)]
    assert tokens.user(first, access, 0) is None
    assert all(tokens.user(other, access, 0) == user for other in others)


# Other sites -------------------------------------------------------------------------------------------


def test_a_change_with_the_cookie_needs_the_header_that_no_other_site_can_send(api: Api) -> None:
    token = api.token()
    refused = api.anonymous("PUT", "/queues/%2F/by-cookie", {}, headers=api.cookie(token))
    assert refused.status_code == 403
    assert "X-Tidemark" in refused.json()["reason"]
    assert api("GET", "/queues/%2F/by-cookie").status_code == 404

    made = api.anonymous("PUT", "/queues/%2F/by-cookie", {}, headers={**api.cookie(token), "X-Tidemark": "1"})
    assert made.status_code == 201


def test_reading_with_the_cookie_needs_no_header(api: Api) -> None:
    assert api.anonymous("GET", "/queues", headers=api.cookie(api.token())).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Origin": "http://["},
    ],
)
def test_a_password_that_a_browser_remembers_is_no_use_to_another_site(
    api: Api, headers: dict[str, str]
) -> None:
    assert api("PUT", "/queues/%2F/forged", {}, headers=headers).status_code == 403
    assert api("GET", "/queues/%2F/forged").status_code == 404
    login = {"username": "guest", "password": "guest"}
    assert api.anonymous("POST", "/login", login, headers=headers).status_code == 403


def test_our_own_page_may_change_things(api: Api) -> None:
    headers = {"Origin": api.base, "Sec-Fetch-Site": "same-origin"}
    assert api("PUT", "/queues/%2F/own-page", {}, headers=headers).status_code == 201


def test_a_page_is_not_asked_for_a_password_by_the_browser(api: Api) -> None:
    assert "www-authenticate" in api.anonymous("GET", "/whoami").headers
    for headers in ({"X-Tidemark": "1"}, {"Sec-Fetch-Dest": "empty"}):
        answer = api.anonymous("GET", "/whoami", headers=headers)
        assert answer.status_code == 401 and "www-authenticate" not in answer.headers


# Patience ----------------------------------------------------------------------------------------------


def test_after_too_many_wrong_passwords_one_has_to_wait_and_tokens_still_work(
    start_broker: Callable[..., BrokerProcess],
) -> None:
    api = Api(start_broker("--set", f"limits.login_failures_max={FAILURES_MAX}").admin)
    token = api.token()
    wrong = [api.as_(("guest", f"wrong-{n}"))("GET", "/whoami") for n in range(FAILURES_MAX + 1)]

    assert [one.status_code for one in wrong] == [401] * FAILURES_MAX + [429]
    assert int(wrong[-1].headers["retry-after"]) >= 1
    assert "www-authenticate" not in wrong[-1].headers
    by_form = api.anonymous("POST", "/login", {"username": "guest", "password": "wrong"})
    assert (by_form.status_code, by_form.json()["error"]) == (429, "too_many_requests")
    assert api.anonymous("GET", "/whoami", headers=bearer(token)).status_code == 200


# Audit ----------------------------------------------------------------------------------------------------


def audit(broker: BrokerProcess) -> list[dict[str, object]]:
    return [json.loads(line) for line in (broker.data / "audit.jsonl").read_text().splitlines()]


def test_every_change_is_in_the_audit_log_with_who_and_what_and_the_answer(
    api: Api, broker: BrokerProcess
) -> None:
    api("PUT", "/users/audited", {"password": "very-secret", "tags": "monitoring"})
    api("PUT", "/queues/%2F/aud%20ited", {"arguments": {"x-max-length": 5}})
    watcher = api.as_(("audited", "very-secret"))
    watcher("DELETE", "/vhosts/%2F")

    lines = audit(broker)[-3:]
    assert [(one["user"], one["method"], one["path"], one["status"]) for one in lines] == [
        ("guest", "PUT", "/api/users/audited", 201),
        ("guest", "PUT", "/api/queues/%2F/aud%20ited", 201),
        ("audited", "DELETE", "/api/vhosts/%2F", 401),
    ]
    assert lines[0]["asked"] == {"password": "(not shown)", "tags": "monitoring"}
    assert lines[1]["asked"] == {"arguments": {"x-max-length": 5}}
    assert str(lines[0]["peer"]).startswith("127.0.0.1:")
    assert "administrative action" in broker.log_path.read_text()


def test_nobody_pushes_what_others_did_out_of_the_audit_log(
    start_broker: Callable[..., BrokerProcess],
) -> None:
    broker = start_broker("--set", f"limits.login_failures_max={FAILURES_MAX}")
    stranger = Api(broker.admin).as_(("stranger", "wrong"))
    path = "/queues/%2F/" + "a" * 50_000
    answers = [stranger("PUT", path, {}).status_code for _ in range(FAILURES_MAX + 20)]
    # On a machine that is busy the next try may be allowed again before the last of these.
    assert answers[:FAILURES_MAX] == [401] * FAILURES_MAX and answers.count(429) >= 15
    lines = audit(broker)
    assert len(lines) == answers.count(401)
    assert all(len(str(one["path"])) <= 2000 for one in lines)


def test_reading_is_not_in_the_audit_log(api: Api, broker: BrokerProcess) -> None:
    api("PUT", "/queues/%2F/something", {})
    before = len(audit(broker))
    api("GET", "/queues")
    assert len(audit(broker)) == before


def test_no_secret_of_a_request_is_in_the_audit_log(api: Api, broker: BrokerProcess) -> None:
    secrets = [f"hidden-{number}" for number in range(6)]
    token = api.token()
    api("PUT", "/users/shy", {"password": secrets[0], "tags": ""})
    api.anonymous("POST", "/login", {"username": "shy", "password": secrets[1]})
    api("POST", "/definitions", {"users": [{"name": "x", "password_hash": secrets[2], "tags": ""}]})
    api("POST", "/exchanges/%2F/amq.default/publish", {"payload": secrets[3], "properties": {}})
    api("PUT", "/queues/%2F/q", {"arguments": {"secret-token": secrets[4]}})
    api.anonymous("PUT", "/queues/%2F/q", {}, headers=bearer(token))

    text = (broker.data / "audit.jsonl").read_text() + broker.log_path.read_text()
    assert "(not shown)" in text
    assert not [secret for secret in [*secrets, token] if secret in text]


def test_the_audit_log_is_put_aside_when_it_is_large(start_broker: Callable[..., BrokerProcess]) -> None:
    settings = ("admin.audit_bytes_max=4096", "admin.audit_files_max=2")
    broker = start_broker(*[word for one in settings for word in ("--set", one)])
    api = Api(broker.admin)
    for number in range(80):
        api("PUT", f"/queues/%2F/q{number}", {})
    names = sorted(path.name for path in broker.data.glob("audit.jsonl*"))
    assert names == ["audit.jsonl", "audit.jsonl.1", "audit.jsonl.2"]
    kept = [
        json.loads(line)["path"]
        for name in reversed(names)
        for line in (broker.data / name).read_text().splitlines()
    ]
    assert kept == [f"/api/queues/%2F/q{number}" for number in range(80 - len(kept), 80)]


def test_without_the_setting_there_is_no_file_and_the_log_still_has_it(
    start_broker: Callable[..., BrokerProcess],
) -> None:
    broker = start_broker("--set", "admin.audit=false")
    Api(broker.admin)("PUT", "/queues/%2F/q", {})
    assert not (broker.data / "audit.jsonl").exists()
    assert "administrative action" in broker.log_path.read_text()


def test_what_is_long_or_deep_is_cut() -> None:
    deep: dict[str, object] = {}
    inner = deep
    for _ in range(20):
        inner["a"] = {}
        inner = inner["a"]  # type: ignore[assignment]
    text = json.dumps(without_secrets({"deep": deep, "long": "x" * 10_000, "many": list(range(1000))}))
    assert len(text) < 2000


# TLS ------------------------------------------------------------------------------------------------------


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A certificate of our own for 127.0.0.1, and its key, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    names = x509.SubjectAlternativeName([x509.DNSName("localhost")])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path / "own.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
    return path


def test_the_api_speaks_tls_and_its_cookie_is_for_tls_only(
    start_broker: Callable[..., BrokerProcess], certificate: Path
) -> None:
    broker = start_broker("--listen.admins", "127.0.0.1:0", "--tls.certificate", str(certificate))
    facts = dict(word.split("=", 1) for word in broker.ready_line.split() if "=" in word)
    port = facts["admins"].rpartition(":")[2]
    context = ssl.create_default_context(cafile=str(certificate))

    with httpx.Client(base_url=f"https://localhost:{port}", verify=context) as client:
        answer = client.post("/api/login", json={"username": "guest", "password": "guest"})
        assert answer.status_code == 200
        assert "secure" in answer.headers["set-cookie"].lower()
        assert "strict-transport-security" in answer.headers
        assert client.get("/api/whoami").json()["name"] == "guest", "by the cookie"
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"https://localhost:{port}/api/whoami")
    with pytest.raises(httpx.HTTPError):
        httpx.get(f"http://localhost:{port}/api/whoami")
    plain = Api(broker.admin)("GET", "/whoami")
    assert plain.status_code == 200 and "strict-transport-security" not in plain.headers


def test_tls_without_a_certificate_is_a_clear_error(tmp_path: Path) -> None:
    process = BrokerProcess(tmp_path / "data", "--listen.admins", "127.0.0.1:0")
    with pytest.raises(AssertionError, match=r"tls\.certificate.*listen\.admins"):
        process.start()
