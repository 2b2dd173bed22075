from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.errors import NotImplementedHere, SyntaxFault
from tidemark.wire.amqp091 import methods as m

FORMS = list(m.FORMS.values())
SHORT_STRINGS = st.binary(max_size=255).map(lambda raw: raw.decode("utf-8", "surrogateescape"))
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "octet": st.integers(0, 2**8 - 1),
    "short": st.integers(0, 2**16 - 1),
    "long": st.integers(0, 2**32 - 1),
    "longlong": st.integers(0, 2**64 - 1),
    "shortstr": SHORT_STRINGS,
    "reply-text": SHORT_STRINGS,
    "longstr": st.binary(max_size=600),
    "bit": st.booleans(),
    "table": st.dictionaries(st.text(max_size=20), st.integers(0, 9) | st.text(), max_size=3),
}


@st.composite
def any_method(draw: st.DrawFn) -> m.Method:
    form = draw(st.sampled_from(FORMS))
    return form.kind(*(draw(VALUES[domain]) for _, domain in form.fields))


def payload(method: m.Method) -> bytes:
    return m.encode_method(1, method)[7:-1]


@given(any_method(), st.integers(0, 65535))
def test_every_method_comes_back_as_it_was_given(method: m.Method, channel: int) -> None:
    frame = m.encode_method(channel, method)
    assert frame[:3] == b"\x01" + channel.to_bytes(2, "big")
    assert int.from_bytes(frame[3:7], "big") == len(frame) - 8
    assert m.decode_method(memoryview(frame)[7:-1]) == method


@given(any_method(), st.data())
def test_every_method_that_is_cut_or_followed_by_more_is_refused(
    method: m.Method, data: st.DataObject
) -> None:
    raw = payload(method)
    with pytest.raises(SyntaxFault):
        m.decode_method(raw[: data.draw(st.integers(0, len(raw) - 1))])
    with pytest.raises(SyntaxFault):
        m.decode_method(raw + b"\x00")


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.kind.__name__)
def test_every_method_can_be_made_with_no_arguments_and_knows_its_ids(form: m.Form) -> None:
    method = form.kind()
    assert m.decode_method(payload(method)) == method
    assert m.ids_of(method) == m.method_ids(payload(method)) == (form.class_id, form.method_id)
    if not isinstance(method, m.ConnectionClose | m.ChannelClose):
        assert (method.class_id, method.method_id) == m.ids_of(method)


def test_the_fields_of_a_close_are_about_the_method_at_fault() -> None:
    close = m.ChannelClose(reply_code=404, reply_text="no queue", class_id=50, method_id=10)
    assert (close.class_id, close.method_id) == (50, 10)
    assert m.ids_of(close) == (20, 40)


# Frames as other implementations write them, in hexadecimal.
@pytest.mark.parametrize(
    ("raw", "method"),
    [
        ("000a001f 07ff 00020000 003c", m.ConnectionTuneOk(2047, 131072, 60)),
        ("000a0028 012f 00 01", m.ConnectionOpen("/", "", True)),
        ("0032000a 0000 0171 12 00000000", m.QueueDeclare(queue="q", durable=True, no_wait=True)),
        (
            "0028000a 0000 0165 05746f706963 06 00000003 016b56",
            m.ExchangeDeclare(
                exchange="e", type="topic", durable=True, auto_delete=True, arguments={"k": None}
            ),
        ),
        ("003c0014 0000 0171 0174 02 00000000", m.BasicConsume(queue="q", consumer_tag="t", no_ack=True)),
        ("003c0078 0000000000000007 03", m.BasicNack(7, True, True)),
        ("00280033", m.ExchangeUnbindOk()),
        ("0055000a 01", m.ConfirmSelect(no_wait=True)),
        ("000a0046 00000001 78 0172", m.ConnectionUpdateSecret(b"x", "r")),
    ],
)
def test_known_bytes_are_the_method_they_stand_for(raw: str, method: m.Method) -> None:
    assert m.decode_method(bytes.fromhex(raw)) == method
    assert payload(method) == bytes.fromhex(raw)


def test_a_method_that_does_not_exist_is_named_in_the_error() -> None:
    with pytest.raises(NotImplementedHere, match="no method 99 in class 60") as caught:
        m.decode_method(b"\x00\x3c\x00\x63")
    assert isinstance(caught.value, m.UnknownMethod)
    assert (caught.value.class_id, caught.value.method_id) == (60, 99)
    assert caught.value.amqp091 == 540


def test_a_reason_that_is_too_long_is_cut_between_characters() -> None:
    close = m.ConnectionClose(541, "é" * 200)
    decoded = m.decode_method(payload(close))
    assert isinstance(decoded, m.ConnectionClose)
    assert decoded.reply_text == "é" * 127


def test_a_name_that_is_too_long_is_not_written() -> None:
    with pytest.raises(ValueError, match=r"QueueDeclareOk\.queue is over 255 bytes"):
        m.encode_method(1, m.QueueDeclareOk(queue="q" * 256))
    with pytest.raises(ValueError, match=r"BasicQos\.prefetch_count cannot be -1"):
        m.encode_method(1, m.BasicQos(prefetch_count=-1))
