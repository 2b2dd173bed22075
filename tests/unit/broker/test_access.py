"""Passwords and permissions."""

from __future__ import annotations

import base64
import hashlib
import time

import pytest

from tidemark.broker.access import Access, check_stored_hash, hash_password, is_outdated, verify
from tidemark.errors import AccessRefused, LoginRefused, PreconditionFailed
from tidemark.model.wiring import PermissionSpec, TopicPermissionSpec, UserSpec

SALT = b"0123456789abcdef"


def rabbitmq_hash(password: str, algorithm: str) -> str:
    """As RabbitMQ's documentation describes it."""
    salt = b"\x90\x8d\xc6\x0a"
    digest = hashlib.new(algorithm, salt + password.encode()).digest()
    return f"rabbit_password_hashing_{algorithm}$" + base64.b64encode(salt + digest).decode()


# Passwords ------------------------------------------------------------------------------------


@pytest.mark.parametrize("password", ["secret", "žluťoučký kůň 🌊", "x" * 1000, " ", "not utf-8 \udcff"])
def test_only_the_password_that_was_hashed_is_verified(password: str) -> None:
    stored = hash_password(password, SALT, log2_n=10)
    assert verify(stored, password)
    assert not verify(stored, password + "x")
    assert not verify(stored, "")


def test_an_empty_password_opens_nothing_even_where_it_was_hashed() -> None:
    assert not verify(hash_password("", SALT, log2_n=10), "")
    assert not verify(rabbitmq_hash("", "sha256"), "")


def test_the_cost_is_part_of_the_stored_hash_so_it_can_be_raised_later() -> None:
    stored = hash_password("secret", SALT, log2_n=11)
    assert stored.startswith("scrypt$n=2048,r=8,p=1$")
    assert verify(stored, "secret")


def test_two_users_with_one_password_have_different_hashes() -> None:
    assert hash_password("same", b"a" * 16, 10) != hash_password("same", b"b" * 16, 10)


@pytest.mark.parametrize("algorithm", ["sha256", "sha512"])
def test_hashes_of_rabbitmq_are_verified_and_outdated(algorithm: str) -> None:
    stored = rabbitmq_hash("secret", algorithm)
    check_stored_hash(stored)
    assert verify(stored, "secret")
    assert not verify(stored, "Secret")
    assert is_outdated(stored)
    assert not is_outdated(hash_password("secret", SALT, 10))


def test_the_example_in_rabbitmqs_documentation_is_verified() -> None:
    stored = "rabbit_password_hashing_sha256$kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR"
    assert verify(stored, "test12")


@pytest.mark.parametrize(
    "stored",
    [
        "plain",
        "md5$abc",
        "scrypt$n=1000,r=8,p=1$YQ==$YQ==",
        "scrypt$n=1073741824,r=8,p=1$YQ==$YQ==",
        "scrypt$n=1024,r=8,p=1$!$YQ==",
        "scrypt$n=1024,r=0,p=1$YQ==$YQ==",
        "rabbit_password_hashing_sha256$c2hvcnQ=",
        "rabbit_password_hashing_sha256$not base64",
        "rabbit_password_hashing_md5$kI3GCqW5JLMJa4iX1lo7X4D6XbY=",
    ],
)
def test_a_hash_that_cannot_be_used_is_refused_before_it_is_stored(stored: str) -> None:
    with pytest.raises(PreconditionFailed, match="no known form"):
        check_stored_hash(stored)


def test_a_user_that_does_not_exist_has_a_hash_that_nothing_fits() -> None:
    stored = Access(()).stored_hash("nobody", loopback=False)
    check_stored_hash(stored)
    assert not verify(stored, "guest")
    assert not verify(stored, "")


def test_a_user_without_a_password_cannot_log_in_with_one() -> None:
    access = Access(())
    access.users["cert"] = UserSpec("cert")
    assert not verify(access.stored_hash("cert", loopback=True), "anything")


def test_a_loopback_user_may_only_come_from_this_machine() -> None:
    access = Access(("guest",))
    access.users["guest"] = UserSpec("guest", "hash")
    assert access.stored_hash("guest", loopback=True) == "hash"
    with pytest.raises(LoginRefused, match="can only connect via localhost"):
        access.stored_hash("guest", loopback=False)


# Permissions ----------------------------------------------------------------------------------


def access_with(configure: str = "", write: str = "", read: str = "") -> Access:
    access = Access(())
    access.permissions["u", "/"] = PermissionSpec("u", "/", configure, write, read)
    return access


PATTERNS = [
    # pattern, names it allows, names it does not
    (".*", ["", "a", "amq.gen-x"], []),
    ("", [""], ["a"]),
    ("^$", [""], ["a"]),
    ("^my-", ["my-queue"], ["your-my-queue", ""]),
    ("queue", ["queue", "my-queue-1"], ["exchange"]),
    ("^(a|b)$", ["a", "b"], ["ab", "c"]),
    (r"\.log$", ["x.log"], ["x.logs"]),
]


@pytest.mark.parametrize(("pattern", "allowed", "refused"), PATTERNS, ids=[row[0] for row in PATTERNS])
@pytest.mark.parametrize("permission", ["configure", "write", "read"])
def test_a_permission_is_a_pattern_searched_for_in_the_name(
    permission: str, pattern: str, allowed: list[str], refused: list[str]
) -> None:
    access = access_with(**{permission: pattern})
    names = allowed + refused
    assert [n for n in names if access.allows("u", "/", permission, n)] == allowed  # type: ignore[arg-type]


def test_a_user_without_a_permission_in_a_vhost_may_do_nothing_there() -> None:
    access = access_with(".*", ".*", ".*")
    assert access.may_enter("u", "/")
    assert not access.may_enter("u", "other")
    assert not access.allows("u", "other", "read", "q")
    assert not access.allows("v", "/", "read", "q")


def test_a_permission_for_nothing_still_lets_a_user_in() -> None:
    assert access_with().may_enter("u", "/")


def test_the_default_exchange_goes_by_the_name_amq_default() -> None:
    access_with(write="^amq\\.default$").check("u", "/", "write", "exchange", "")
    with pytest.raises(
        AccessRefused, match=r"access to exchange 'amq\.default' in vhost '/' refused for user 'u'"
    ):
        access_with(write="^$").check("u", "/", "write", "exchange", "")


def test_a_refusal_says_who_may_not_have_what() -> None:
    with pytest.raises(AccessRefused) as refusal:
        access_with().check("u", "/", "read", "queue", "orders")
    assert str(refusal.value) == "access to queue 'orders' in vhost '/' refused for user 'u'"


def test_a_topic_permission_narrows_the_keys_of_its_exchange_only() -> None:
    access = access_with(".*", ".*", ".*")
    access.topic_permissions["u", "/", "amq.topic"] = TopicPermissionSpec(
        "u", "/", "amq.topic", "^a\\.", "^b\\."
    )

    access.check_topic("u", "/", "write", "amq.topic", "a.x")
    access.check_topic("u", "/", "read", "amq.topic", "b.x")
    access.check_topic("u", "/", "write", "another", "anything")
    with pytest.raises(AccessRefused, match=r"access to topic 'b\.x' in exchange 'amq\.topic'"):
        access.check_topic("u", "/", "write", "amq.topic", "b.x")


def test_a_topic_permission_may_name_the_user_and_the_vhost_literally() -> None:
    access = Access(())
    spec = TopicPermissionSpec("u.v", "/", "t", "^{username}-{vhost}$", "")
    access.topic_permissions["u.v", "/", "t"] = spec
    access.check_topic("u.v", "/", "write", "t", "u.v-/")
    with pytest.raises(AccessRefused):
        access.check_topic("u.v", "/", "write", "t", "uxv-/")


def test_a_user_or_vhost_that_is_removed_takes_its_permissions_along() -> None:
    access = access_with(".*")
    access.users["u"] = UserSpec("u")
    access.permissions["v", "/"] = PermissionSpec("v", "/", "", "", "")
    access.topic_permissions["u", "/", "t"] = TopicPermissionSpec("u", "/", "t", "", "")

    access.remove_user("u")
    assert list(access.permissions) == [("v", "/")]
    assert not access.topic_permissions
    access.remove_vhost("/")
    assert not access.permissions


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|aa)+$", "a*a*a*a*a*a*b"])
def test_a_permission_that_would_take_years_to_search_for_allows_nothing_and_holds_up_nobody(
    pattern: str,
) -> None:
    access = Access(())
    access.permissions["u", "/"] = PermissionSpec("u", "/", pattern, pattern, pattern)
    access.topic_permissions["u", "/", "x"] = TopicPermissionSpec("u", "/", "x", pattern, pattern)
    name = "a" * 250 + "!"

    began = time.thread_time()
    for number in range(100):
        assert not access.allows("u", "/", "read", f"{name}{number}")
        with pytest.raises(AccessRefused):
            access.check_topic("u", "/", "write", "x", f"{name}{number}")
    assert time.thread_time() - began < 1
