"""Settings: which source wins, what is refused, and how it is shown."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tidemark import config
from tidemark.config import Address, describe, every_setting, load, parse_address
from tidemark.errors import ConfigError


def test_without_any_source_everything_has_its_default() -> None:
    loaded = load()

    assert loaded.listen.amqp == "127.0.0.1:5672"
    assert loaded.node.data == Path("tidemark-data")
    assert set(loaded.origins.values()) == {"default"}


def test_a_flag_wins_over_the_environment_that_over_the_file_that_over_the_default(tmp_path: Path) -> None:
    file = tmp_path / "tidemark.toml"
    file.write_text('[listen]\namqp = "a:1"\nadmin = "a:1"\namqps = ""\n[log]\nlevel = "error"\n')
    environment = {"TIDEMARK_LISTEN_AMQP": "b:2", "TIDEMARK_LISTEN_ADMIN": "b:2"}

    loaded = load({"listen.amqp": "c:3"}, environment, file)

    assert (loaded.listen.amqp, loaded.origins["listen.amqp"]) == ("c:3", "--listen.amqp")
    assert (loaded.listen.admin, loaded.origins["listen.admin"]) == ("b:2", "TIDEMARK_LISTEN_ADMIN")
    assert (loaded.log.level, loaded.origins["log.level"]) == ("error", f"file {file}")
    assert (loaded.log.format, loaded.origins["log.format"]) == ("text", "default")


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("store.segment_bytes", "8MiB", 8 << 20),
        ("store.segment_bytes", "16777216", 1 << 24),
        ("amqp091.message_bytes_max", "1 GB", None),
        ("amqp091.message_bytes_max", "1.5 MiB", 3 << 19),
        ("limits.memory_high", "0.25", 0.25),
        ("broker.loopback_users", "guest, root", ("guest", "root")),
        ("broker.loopback_users", "", ()),
        ("tls.certificate", "", None),
    ],
)
def test_text_becomes_a_value_of_the_declared_type(key: str, text: str, value: object) -> None:
    if value is None and text:
        with pytest.raises(ConfigError):
            load({key: text})
        return
    section, name = key.split(".")
    assert getattr(getattr(load({key: text}), section), name) == value


@pytest.mark.parametrize(
    ("flags", "environment", "sentence"),
    [
        (
            {"store.segment_byte": "1"},
            {},
            "store.segment_byte: unknown setting; did you mean 'segment_bytes'?",
        ),
        ({"stor.segment_bytes": "1"}, {}, "unknown setting; did you mean 'store.segment_bytes'?"),
        ({}, {"TIDEMARK_STORE_SEGMENT_BYTE": "1"}, "did you mean 'TIDEMARK_STORE_SEGMENT_BYTES'?"),
        ({"listen.backlog": "many"}, {}, "listen.backlog: must be a whole number, not 'many'"),
        ({"store.segment_bytes": "big"}, {}, "must be a whole number such as 64MiB, not 'big'"),
        ({"log.level": "loud"}, {}, "must be one of 'debug', 'info', 'warning', 'error', not 'loud'"),
        ({"limits.memory_high": "2"}, {}, "limits.memory_high: must be above 0 and at most 1"),
        ({"listen.amqp": "5672"}, {}, "listen.amqp: must be HOST:PORT"),
        ({"listen.amqp": "a:99999"}, {}, "listen.amqp: must be HOST:PORT"),
        ({}, {"TIDEMARK_LISTEN_AMQP": "x"}, "(from TIDEMARK_LISTEN_AMQP)"),
        ({"listen.amqps": "a:1"}, {}, "tls.certificate: is needed to listen on listen.amqps"),
        ({"tls.certificate": "/nowhere.pem"}, {}, "tls.certificate: there is no file /nowhere.pem"),
        ({"tls.clients": "ask"}, {}, "tls.authorities: is needed when tls.clients is 'ask'"),
        ({"listen.amqp": ""}, {}, "listen.amqp: must not be empty when listen.amqps is empty too"),
        ({"node.name": "two words"}, {}, "node.name: must be a word"),
    ],
)
def test_what_cannot_be_is_one_sentence(
    flags: dict[str, str], environment: dict[str, str], sentence: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(flags, environment)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[store", "is not TOML"),
        ("[strore]\n", "strore: unknown section; did you mean 'store'?"),
        ("store = 1\n", "store: must be a table"),
        ("[store]\nsegment_byte = 1\n", "store.segment_byte: unknown setting; did you mean 'segment_bytes'?"),
        ("[log]\nlevel = 3\n", "log.level: must be one of"),
        ('[listen]\nbacklog = "x"\n', "listen.backlog: must be a whole number"),
        ("[node]\nname = true\n", "node.name: must be text, not True"),
    ],
)
def test_a_file_with_a_mistake_is_one_sentence_that_names_the_file(
    tmp_path: Path, text: str, sentence: str
) -> None:
    file = tmp_path / "broken.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(file=file)
    assert sentence in str(caught.value)
    assert str(file) in str(caught.value)


def test_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml cannot be read: No such file"):
        load(file=tmp_path / "none.toml")


def test_other_variables_of_ours_are_left_alone() -> None:
    assert load(environment={"TIDEMARK_PURE": "1", "TIDEMARK_URL": "x", "HOME": "/"}).origins


def test_the_description_is_a_file_that_sets_the_same(tmp_path: Path) -> None:
    before = load({"store.segment_bytes": "8MiB", "broker.loopback_users": "", "node.name": 'a"b\\c'})

    file = tmp_path / "shown.toml"
    file.write_text(describe(before))
    after = load(file=file)

    tomllib.loads(describe(before))
    for one in every_setting():
        assert after.value(one) == before.value(one), one.key


def test_the_description_names_each_origin_and_hides_passwords() -> None:
    shown = describe(load({"broker.default_password": "hunter2"}, {"TIDEMARK_LOG_LEVEL": "debug"}))

    assert "hunter2" not in shown
    [level] = [line for line in shown.splitlines() if line.startswith("level = ")]
    assert level.split() == ["level", "=", '"debug"', "#", "TIDEMARK_LOG_LEVEL"]


def test_every_setting_says_what_it_is_for() -> None:
    for one in every_setting():
        assert one.doc.endswith("."), one.key
        assert one.read(config.load().value(one) if one.default is None else one.default) == one.default


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:0", Address("127.0.0.1", 0)),
        ("[::1]:5672", Address("::1", 5672)),
        ("h:1", Address("h", 1)),
    ],
)
def test_an_address_is_a_host_and_a_port(text: str, address: Address) -> None:
    assert parse_address("listen.amqp", text) == address
    assert str(address) == text
