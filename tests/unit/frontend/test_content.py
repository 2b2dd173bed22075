"""Looking into properties for the broker."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tidemark.model.runs import HAS_COPIES, HAS_EXPIRATION, HAS_HEADERS, HAS_USER_ID, PERSISTENT
from tidemark.wire.amqp091.content import Amqp091Content
from tidemark.wire.amqp091.properties import Properties, decode_properties, encode_properties
from tidemark.wire.amqp091.tables import decode_table, encode_table

CONTENT = Amqp091Content()
RICH = Properties(
    content_type="text/plain",
    content_encoding="utf-8",
    headers={"a": 1, "CC": ["x"]},
    delivery_mode=2,
    priority=7,
    reply_to="answers",
    expiration="5000",
    user_id="guest",
)


def test_headers_are_found_behind_the_properties_before_them() -> None:
    assert CONTENT.headers(encode_properties(RICH)) == {"a": 1, "CC": ["x"]}
    assert CONTENT.headers(encode_properties(Properties(headers={"b": True}))) == {"b": True}


def test_no_headers_are_an_empty_table() -> None:
    assert CONTENT.headers(encode_properties(Properties(content_type="x"))) == {}


def test_other_headers_leave_the_other_properties_as_they_were() -> None:
    changed = decode_properties(CONTENT.with_headers(encode_properties(RICH), {"new": "x"}))
    assert changed.headers == {"new": "x"}
    changed.headers = RICH.headers
    assert changed == RICH


def test_an_empty_table_removes_the_headers_and_expiration_goes_when_asked() -> None:
    changed = decode_properties(CONTENT.with_headers(encode_properties(RICH), {}, keep_expiration=False))
    assert changed.headers is None
    assert changed.expiration is None
    assert changed.priority == 7


def test_single_properties_are_read_and_reply_to_is_replaced() -> None:
    raw = encode_properties(RICH)
    assert (CONTENT.user_id(raw), CONTENT.expiration(raw), CONTENT.reply_to(raw)) == (
        "guest",
        "5000",
        "answers",
    )
    assert CONTENT.reply_to(CONTENT.with_reply_to(raw, "elsewhere")) == "elsewhere"
    assert CONTENT.user_id(encode_properties(Properties())) is None


def test_a_description_is_what_the_scanner_writes_into_a_row() -> None:
    flags, priority, ttl_ms = CONTENT.describe(encode_properties(RICH))
    assert flags == PERSISTENT | HAS_HEADERS | HAS_EXPIRATION | HAS_USER_ID | HAS_COPIES
    assert (priority, ttl_ms) == (7, 5000)


@pytest.mark.parametrize("table", [b"", encode_table({"new": "x", "n": [1, None]})])
@pytest.mark.parametrize(
    "given", [RICH, Properties(headers={"b": 1}), Properties(content_encoding="z", headers={}, app_id="a")]
)
def test_headers_are_exchanged_as_bytes_and_the_rest_is_left_as_it_was(
    given: Properties, table: bytes
) -> None:
    raw = encode_properties(given)
    assert CONTENT.with_headers_table(raw, CONTENT.headers_table(raw)) == raw
    changed = CONTENT.with_headers_table(raw, table)
    assert CONTENT.headers_table(changed) == table
    expected = replace(given, headers=decode_table(table)[0] if table else None)
    assert decode_properties(changed) == expected


def test_no_headers_are_no_table() -> None:
    assert CONTENT.headers_table(encode_properties(Properties(content_type="x"))) == b""
