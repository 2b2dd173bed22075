from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.errors import SyntaxFault
from tidemark.wire.amqp091.properties import (
    NO_PROPERTIES,
    Properties,
    decode_properties,
    encode_properties,
)

TEXT = st.none() | st.text(max_size=60)
OCTET = st.none() | st.integers(0, 255)
PROPERTIES = st.builds(
    Properties,
    content_type=TEXT,
    content_encoding=TEXT,
    headers=st.none() | st.dictionaries(st.text(max_size=20), st.integers(-5, 5) | st.text()),
    delivery_mode=OCTET,
    priority=OCTET,
    correlation_id=TEXT,
    reply_to=TEXT,
    expiration=TEXT,
    message_id=TEXT,
    timestamp=st.none() | st.integers(0, 2**64 - 1),
    type=TEXT,
    user_id=TEXT,
    app_id=TEXT,
    cluster_id=TEXT,
)


@given(PROPERTIES)
def test_properties_come_back_as_they_were_given(properties: Properties) -> None:
    assert decode_properties(encode_properties(properties)) == properties


@given(PROPERTIES, st.data())
def test_properties_that_are_cut_or_followed_by_more_are_refused(
    properties: Properties, data: st.DataObject
) -> None:
    raw = encode_properties(properties)
    with pytest.raises(SyntaxFault):
        decode_properties(raw[: data.draw(st.integers(0, len(raw) - 1))])
    with pytest.raises(SyntaxFault):
        decode_properties(raw + b"\x00")


def test_the_bytes_are_those_of_the_specification() -> None:
    properties = Properties(content_type="a", delivery_mode=2, expiration="5", cluster_id="")
    assert encode_properties(properties) == b"\x91\x04\x01a\x02\x015\x00"
    assert encode_properties(Properties()) == NO_PROPERTIES


def test_bytes_that_are_not_utf8_survive_in_a_short_string() -> None:
    raw = b"\x80\x00\x02\xff\xfe"
    assert encode_properties(decode_properties(raw)) == raw


def test_a_further_word_of_flags_is_skipped_when_it_is_empty() -> None:
    assert decode_properties(b"\x10\x01\x00\x01\x00\x00\x02") == Properties(delivery_mode=2)


@pytest.mark.parametrize("raw", [b"\x00\x02", b"\x00\x01\x80\x00", b"\x00\x01\x00\x02"])
def test_a_flag_that_no_property_has_is_refused(raw: bytes) -> None:
    with pytest.raises(SyntaxFault, match="does not exist"):
        decode_properties(raw)


@pytest.mark.parametrize("raw", [b"", b"\x00", b"\x00\x01", b"\x00\x01\x00"])
def test_flags_that_are_cut_are_refused(raw: bytes) -> None:
    with pytest.raises(SyntaxFault, match="before its property flags"):
        decode_properties(raw)


def test_a_value_that_a_property_cannot_hold_is_named() -> None:
    with pytest.raises(ValueError, match="priority cannot be 256"):
        encode_properties(Properties(priority=256))
    with pytest.raises(ValueError, match="reply_to"):
        encode_properties(Properties(reply_to="x" * 256))
