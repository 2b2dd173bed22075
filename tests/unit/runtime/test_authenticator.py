"""Logins: who is let in, and how often a password is really hashed."""

from __future__ import annotations

import asyncio

import pytest

from tidemark.broker import access
from tidemark.broker.access import Access, hash_password
from tidemark.frontend.services import Login, PeerInfo
from tidemark.model.wiring import UserSpec
from tidemark.runtime.authenticator import Authenticator, is_loopback
from tidemark.runtime.throttle import Throttle

HERE = PeerInfo("127.0.0.1", 1)
THERE = PeerInfo("192.0.2.7", 1)


@pytest.fixture
def users() -> Access:
    found = Access(loopback_users=("guest",))
    for name in ("guest", "ada"):
        found.users[name] = UserSpec(name, hash_password(f"{name}-secret", b"salt" * 4, log2_n=10))
    return found


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every password that was really hashed."""
    seen: list[str] = []
    really = access.verify

    def counting(stored: str, password: str) -> bool:
        seen.append(password)
        return really(stored, password)

    monkeypatch.setattr(access, "verify", counting)
    return seen


def logins(users: Access, *attempts: Login) -> list[str | None]:
    async def run() -> list[str | None]:
        authenticator = Authenticator(users)
        try:
            return [(await authenticator.login(attempt)).user for attempt in attempts]
        finally:
            authenticator.close()

    return asyncio.run(run())


def test_the_right_password_opens_and_a_wrong_one_does_not(users: Access) -> None:
    right, wrong = (Login("PLAIN", "ada", word, THERE) for word in ("ada-secret", "ada-secre"))
    assert logins(users, wrong, right, wrong) == [None, "ada", None]


def test_a_user_that_does_not_exist_takes_a_hash_too_and_is_refused(users: Access, hashed: list[str]) -> None:
    assert logins(users, Login("PLAIN", "nobody", "x", HERE)) == [None]
    assert hashed == ["x"]


def test_guest_may_come_from_this_machine_only(users: Access) -> None:
    here, there = (Login("PLAIN", "guest", "guest-secret", peer) for peer in (HERE, THERE))
    assert logins(users, here, there) == ["guest", None]


def test_a_success_is_remembered_and_a_failure_is_not(users: Access, hashed: list[str]) -> None:
    right, wrong = (Login("PLAIN", "ada", word, HERE) for word in ("ada-secret", "wrong"))
    logins(users, right, right, right, wrong, wrong)
    assert hashed == ["ada-secret", "wrong", "wrong"]


def test_a_changed_password_closes_the_door_at_once(users: Access) -> None:
    async def run() -> list[str | None]:
        authenticator = Authenticator(users)
        old = Login("PLAIN", "ada", "ada-secret", HERE)
        first = await authenticator.login(old)
        users.users["ada"] = UserSpec("ada", hash_password("other", b"salt" * 4, log2_n=10))
        second = await authenticator.login(old)
        del users.users["ada"]
        third = await authenticator.login(Login("PLAIN", "ada", "other", HERE))
        authenticator.close()
        return [first.user, second.user, third.user]

    assert asyncio.run(run()) == ["ada", None, None]


def test_a_thousand_equal_logins_at_once_are_hashed_once(users: Access, hashed: list[str]) -> None:
    async def run() -> int:
        authenticator = Authenticator(users)
        login = Login("PLAIN", "ada", "ada-secret", HERE)
        verdicts = await asyncio.gather(*(authenticator.login(login) for _ in range(1000)))
        authenticator.close()
        return sum(verdict.user == "ada" for verdict in verdicts)

    assert asyncio.run(run()) == 1000
    assert hashed == ["ada-secret"]


def test_external_is_the_name_in_the_certificate_if_there_is_such_a_user(users: Access) -> None:
    ada, eve = (PeerInfo("192.0.2.7", 1, tls=True, certificate_name=name) for name in ("ada", "eve"))
    attempts = [Login("EXTERNAL", "", "", peer) for peer in (ada, eve, THERE)]
    assert logins(users, *attempts) == ["ada", None, None]


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("::ffff:127.0.0.1", True),
        ("10.0.0.1", False), ("fe80::1%eth0", False), ("::ffff:10.0.0.1", False), ("", False), ("localhost.evil", False),
    ],
)  # fmt: skip
def test_only_addresses_of_this_machine_are_loopback(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


def test_wrong_passwords_make_the_next_try_wait_unseen_for_that_user_from_there(
    users: Access, hashed: list[str]
) -> None:
    now = [1_000_000]
    gate = Authenticator(users, Throttle(failures_max=2), lambda: now[0])

    async def scenario() -> None:
        for _ in range(2):
            assert (await gate.login(Login("PLAIN", "ada", "wrong", THERE))).retry_s == 0
        verdict = await gate.login(Login("PLAIN", "ada", "ada-secret", THERE))
        assert (verdict.user, verdict.retry_s) == (None, 1)
        assert "wait 1 s" in verdict.reason
        assert (await gate.login(Login("PLAIN", "guest", "guest-secret", HERE))).user == "guest"
        now[0] += 1000
        assert (await gate.login(Login("PLAIN", "ada", "ada-secret", THERE))).user == "ada"

    asyncio.run(scenario())
    assert hashed == ["wrong", "wrong", "guest-secret", "ada-secret"]


def test_many_guesses_at_once_are_no_way_around_the_wait(users: Access, hashed: list[str]) -> None:
    gate = Authenticator(users, Throttle(failures_max=3))

    async def scenario() -> None:
        logins = [gate.login(Login("PLAIN", "ada", f"guess {number}", THERE)) for number in range(20)]
        verdicts = await asyncio.gather(*logins)
        assert sum(verdict.retry_s > 0 for verdict in verdicts) == 17

    asyncio.run(scenario())
    assert len(hashed) == 3


def test_many_right_logins_at_once_do_not_wait(users: Access, hashed: list[str]) -> None:
    gate = Authenticator(users, Throttle(failures_max=3))

    async def scenario() -> None:
        logins = [gate.login(Login("PLAIN", "ada", "ada-secret", THERE)) for _ in range(20)]
        assert {verdict.user for verdict in await asyncio.gather(*logins)} == {"ada"}

    asyncio.run(scenario())
    assert hashed == ["ada-secret"]
