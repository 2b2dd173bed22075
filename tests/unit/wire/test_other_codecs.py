"""What pika and py-amqp make of our bytes, and we of theirs: oracles that we did not write."""

from __future__ import annotations

import decimal
from typing import Any

import amqp.serialization
import pika.data
import pika.spec
import pytest

from tidemark.model.values import Decimal
from tidemark.wire.amqp091 import methods as m
from tidemark.wire.amqp091.properties import Properties, decode_properties, encode_properties
from tidemark.wire.amqp091.sasl import AMQPLAIN, Credentials, read_response
from tidemark.wire.amqp091.tables import decode_table, encode_table

# pika reads an UpdateSecret into the wrong field; below it only writes one.
KNOWN_TO_PIKA = [
    form
    for form in m.FORMS.values()
    if form.class_id << 16 | form.method_id in pika.spec.methods and form.kind is not m.ConnectionUpdateSecret
]
SAMPLES: dict[str, Any] = {
    "octet": 7,
    "short": 1025,
    "long": 70_000,
    "longlong": 1 << 40,
    "shortstr": "näme",
    "reply-text": "why",
    "longstr": b"secret",
    "table": {"a": 1, "b": {"c": "d"}},
}


def sample(form: m.Form) -> m.Method:
    """A method whose fields all differ from their defaults, and neighbouring bits from each other."""
    bits = iter([True, False, True, True, False])
    return form.kind(*(next(bits) if d == "bit" else SAMPLES[d] for _, d in form.fields))


def test_pika_knows_nearly_every_method() -> None:
    strangers = {form.kind for form in m.FORMS.values()} - {form.kind for form in KNOWN_TO_PIKA}
    ours = {m.QueueMake, m.QueueMakeOk, m.QueueEnd, m.QueueEndOk, m.QueueRenew, m.QueueRenewOk}
    assert strangers <= ours | {
        m.ConnectionUpdateSecret,
        m.BasicRecoverAsync,
        m.AccessRequest,
        m.AccessRequestOk,
    }


@pytest.mark.parametrize("form", KNOWN_TO_PIKA, ids=lambda form: form.kind.__name__)
def test_pika_reads_and_writes_every_method_as_we_do(form: m.Form) -> None:
    method = sample(form)
    payload = m.encode_method(1, method)[7:-1]

    theirs = pika.spec.methods[form.class_id << 16 | form.method_id]().decode(payload, 4)
    assert theirs.NAME.replace(".", "") == form.kind.__name__
    for name, domain in form.fields:
        if name.startswith("reserved") or name == "ticket":
            continue
        spelled = {"no_wait": "nowait", "global_": "global_qos"}.get(name, name)
        value = getattr(theirs, spelled)
        if domain == "longstr" and isinstance(value, str):
            value = value.encode()
        assert value == getattr(method, name), name

    assert payload[4:] == b"".join(theirs.encode())


def test_pika_writes_an_update_secret_as_we_do() -> None:
    theirs = b"".join(pika.spec.Connection.UpdateSecret(b"new", "expired").encode())
    ours = m.encode_method(0, m.ConnectionUpdateSecret(b"new", "expired"))
    assert ours[11:-1] == theirs


def test_pika_reads_and_writes_properties_as_we_do() -> None:
    ours = Properties(
        content_type="text/plain",
        headers={"n": 5, "big": 1 << 40, "s": "é", "list": [True, None]},
        delivery_mode=2,
        priority=3,
        expiration="1000",
        timestamp=1_700_000_000,
        user_id="guest",
    )
    raw = encode_properties(ours)

    theirs = pika.spec.BasicProperties()
    theirs.decode(raw)
    assert theirs.headers == ours.headers
    assert (theirs.delivery_mode, theirs.priority, theirs.expiration) == (2, 3, "1000")
    assert decode_properties(b"".join(theirs.encode())) == ours


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (5, 5),
        (-(1 << 40), -(1 << 40)),
        (True, True),
        (0.25, 0.25),
        ("é", "é"),
        (None, None),
        ([1, "a", {"k": 2}], [1, "a", {"k": 2}]),
        ({"inner": {"deep": []}}, {"inner": {"deep": []}}),
        (decimal.Decimal("3.14"), Decimal(2, 314)),
    ],
    ids=repr,
)
def test_tables_that_clients_write_are_read_as_they_meant(given: Any, read: Any) -> None:
    if not isinstance(given, float):  # pika cannot write floats
        by_pika: list[bytes] = []
        pika.data.encode_table(by_pika, {"k": given})
        assert decode_table(b"".join(by_pika))[0] == {"k": read}

    by_py_amqp = amqp.serialization.dumps("F", ({"k": given},))
    assert decode_table(by_py_amqp)[0] == {"k": read}


def test_tables_that_we_write_are_read_by_clients_as_we_meant() -> None:
    table = {"i": 1, "l": 1 << 40, "t": True, "d": 0.5, "s": "é", "v": None, "a": [1, {"k": "v"}]}
    raw = encode_table(table)
    assert amqp.serialization.loads("F", raw, 0)[0] == [table]

    del table["d"]  # pika reads floats as whole numbers
    assert pika.data.decode_table(encode_table(table), 0)[0] == table


def test_the_amqplain_login_of_py_amqp_is_read() -> None:
    login = amqp.sasl.AMQPLAIN("guest", "pässword").start(None)
    assert read_response(AMQPLAIN, login) == Credentials(AMQPLAIN, "guest", "pässword".encode())
