"""URLs and the order in which addresses are tried."""

from __future__ import annotations

import random

import pytest

from tidemark.client.address import WAIT_S_MAX, Address, Endpoints, parse_url, with_group

A, B, C = Address("a", 1), Address("b", 2), Address("c", 3)


def test_a_url_names_everything() -> None:
    """H-34: a list of addresses."""
    target = parse_url("tidemark://ann:s%3Acret@one:1,two,[::1]:3/sales%2Feast")

    assert target.addresses == (Address("one", 1), Address("two", 5672), Address("::1", 3))
    assert (target.user, target.password, target.vhost, target.tls) == ("ann", "s:cret", "sales/east", False)


@pytest.mark.parametrize("url", ["tidemark://", "tidemark:///", "tidemark://guest:guest@127.0.0.1:5672/"])
def test_what_a_url_leaves_out_is_the_usual(url: str) -> None:
    """H-34: one address, which may be a virtual one."""
    target = parse_url(url)
    assert target.addresses == (Address("127.0.0.1", 5672),)
    assert (target.user, target.password, target.vhost) == ("guest", "guest", "/")


def test_the_scheme_with_an_s_is_tls_on_its_own_port() -> None:
    target = parse_url("tidemarks://host")
    assert target.tls and target.addresses == (Address("host", 5671),)


def test_a_url_may_name_a_group_of_the_cluster() -> None:
    target = parse_url("tidemark://u:p@a,b/shop?group=s%201")
    assert (target.group, target.vhost, len(target.addresses)) == ("s 1", "shop", 2)
    assert parse_url("tidemark://a/").group is None
    assert with_group("tidemark://a/v", "s 1") == "tidemark://a/v?group=s%201"
    assert with_group("tidemark://a/v?group=x", "s2") == "tidemark://a/v?group=s2"
    assert with_group("tidemark://a/v?group=x", "") == "tidemark://a/v"


@pytest.mark.parametrize("group", ["", "a&b=c", "x@host/", "a?b"])
def test_a_group_that_cannot_be_is_refused_and_nothing_is_shown(group: str) -> None:
    with pytest.raises(ValueError, match="name of one group") as caught:
        parse_url(f"tidemark://u:secret?group={group}")
    assert "secret" not in str(caught.value)


def test_an_address_shows_as_it_is_written() -> None:
    assert str(Address("::1", 5)) == "[::1]:5" and str(Address("h", 5)) == "h:5"


@pytest.mark.parametrize("url", ["amqp://host", "host:5672", "tidemark://host:port", "tidemark://host:70000"])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="is not"):
        parse_url(url)


def test_a_refused_url_does_not_show_its_password() -> None:
    with pytest.raises(ValueError, match="is not a URL") as refused:
        parse_url("amqp://ann:secret@host")
    assert "secret" not in str(refused.value) and "ann" in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        "tidemark://ann:s3cret/word@host:5672/",
        "tidemark://ann:123/s3cret@host:5672/vhost",
        "tidemark://ann:x@s3cret/word@host",
        "tidemark://ann:s3cret",
        "tidemark://ann:s3cret/vhost",
        "amqp://ann:s3cret:word@host",
        "amqp://ann:s3cret/word@host",
        "amqp://ann:s3cret@host:5672/v@host",
        "amqp://ann:s3cret://x@host",
        "ann:s3cret@host",
    ],
)
def test_no_part_of_a_password_is_shown_wherever_it_was_cut(url: str) -> None:
    with pytest.raises(ValueError, match="is not") as refused:
        parse_url(url)
    assert "s3cret" not in str(refused.value) and "word" not in str(refused.value).replace("password", "")


def test_a_slash_in_a_password_is_refused_with_how_to_write_it() -> None:
    with pytest.raises(ValueError, match="%2F"):
        parse_url("tidemark://ann:a/b@host:5672/")
    assert parse_url("tidemark://ann:a%2Fb@host:5672/v%40x").password == "a/b"


def test_the_first_round_is_immediate_and_each_further_one_waits_longer() -> None:
    endpoints = Endpoints([A, B], random.Random(1))

    tried = [endpoints.next() for _ in range(12)]

    assert [address for address, _ in tried] == [A, B] * 6
    assert [wait for _, wait in tried[:2]] == [0, 0]
    starts = [wait for _, wait in tried[2::2]]
    assert all(wait >= 0.025 for wait in starts) and starts[-1] > starts[0]
    assert all(wait == 0 for _, wait in tried[3::2])


def test_the_wait_has_a_limit() -> None:
    endpoints = Endpoints([A], random.Random(1))
    assert max(endpoints.next()[1] for _ in range(5000)) <= WAIT_S_MAX


def test_after_a_success_the_same_address_comes_first_and_at_once() -> None:
    endpoints = Endpoints([A, B, C])
    endpoints.next()
    endpoints.next()

    endpoints.connected()

    assert [endpoints.next() for _ in range(3)] == [(B, 0.0), (C, 0.0), (A, 0.0)]


def test_members_that_a_hello_names_are_tried_last() -> None:
    endpoints = Endpoints([A])
    endpoints.next()
    endpoints.connected([A, B])
    assert [endpoints.next()[0] for _ in range(2)] == [A, B]


def test_members_that_are_no_longer_named_go_and_given_ones_stay() -> None:
    endpoints = Endpoints([A])
    endpoints.next()
    endpoints.connected([A, B])
    endpoints.learn([B, C])
    endpoints.learn([C])

    assert endpoints.names == (str(A), str(C))
