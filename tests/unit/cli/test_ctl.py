"""`tidemark ctl` and its siblings, run as functions against a real broker."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pika
import pytest
from helpers.broker import BrokerProcess

from tidemark.cli import main
from tidemark.cli.output import table

Ctl = Callable[..., str]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path_factory.mktemp("ctl") / "data").start()
    yield process
    process.stop()


@pytest.fixture
def ctl(broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ctl:
    """Runs `tidemark ctl …`, which succeeds; what it printed."""
    monkeypatch.setenv("TIDEMARK_URL", f"http://{broker.admin.host}:{broker.admin.port}")

    def run(*words: str, code: int = 0) -> str:
        capsys.readouterr()
        assert main(["ctl", *words]) == code
        printed = capsys.readouterr()
        return printed.err if code else printed.out

    return run


def test_a_user_can_be_made_used_and_deleted(ctl: Ctl, broker: BrokerProcess) -> None:
    ctl("users", "add", "ada", "--password", "secret", "--tags", "monitoring")
    ctl("vhosts", "add", "sales", "--description", "orders")
    ctl("permissions", "set", "ada", "^q", ".*", ".*", "--vhost", "sales")

    assert re.search(r"^ada +monitoring$", ctl("users", "list"), re.MULTILINE)
    assert re.search(r"^ada +sales +\^q +\.\* +\.\*$", ctl("permissions", "list"), re.MULTILINE)
    login = pika.PlainCredentials("ada", "secret")
    where = pika.ConnectionParameters(broker.address.host, broker.address.port, "sales", login)
    pika.BlockingConnection(where).close()

    ctl("users", "tags", "ada", "")
    ctl("users", "password", "ada", "--password", "other")
    ctl("permissions", "clear", "ada", "--vhost", "sales")
    ctl("users", "delete", "ada")
    ctl("vhosts", "delete", "sales")
    assert "ada" not in ctl("users", "list")


def test_a_password_may_come_from_standard_input(ctl: Ctl, monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    monkeypatch.setattr("sys.stdin", io.StringIO("from-a-pipe\n"))
    ctl("users", "add", "piped", "--password", "-", "--tags", "management")
    assert ctl("--user", "piped", "--password", "from-a-pipe", "vhosts", "list").startswith("name")


def test_queues_are_declared_listed_purged_and_deleted(ctl: Ctl) -> None:
    ctl("queues", "declare", "a/b", "--arguments", '{"x-max-length": 5}')

    [queue] = json.loads(ctl("queues", "list", "--vhost", "/", "--json"))
    assert (queue["name"], queue["arguments"]) == ("a/b", {"x-max-length": 5})
    assert re.search(r"^/ +a/b +classic +yes +0 +0 +0$", ctl("queues", "list"), re.MULTILINE)
    ctl("queues", "lock", "a/b")
    assert json.loads(ctl("queues", "list", "--json"))[0]["state"] == "locked"
    ctl("queues", "unlock", "a/b")
    ctl("queues", "purge", "a/b")
    ctl("queues", "delete", "a/b", "--if-empty")
    assert json.loads(ctl("queues", "list", "--json")) == []


@pytest.mark.parametrize("what", ["exchanges", "bindings", "connections", "consumers", "topic-permissions"])
def test_every_list_is_a_table_or_json(ctl: Ctl, what: str) -> None:
    assert "  " in ctl(what, "list").splitlines()[0]
    assert isinstance(json.loads(ctl(what, "list", "--json")), list)


def test_the_status_says_what_the_broker_holds(ctl: Ctl) -> None:
    assert re.search(r"^alarms +none$", ctl("status"), re.MULTILINE)
    assert json.loads(ctl("status", "--json"))["product_name"] == "Tidemark"


def test_definitions_are_exported_and_imported(ctl: Ctl, tmp_path: Path) -> None:
    ctl("queues", "declare", "moved")
    ctl("definitions", "export", str(tmp_path / "all.json"))
    ctl("queues", "delete", "moved")

    assert "queues: 1 made" in ctl("definitions", "import", str(tmp_path / "all.json"))
    assert "moved" in ctl("queues", "list")
    ctl("queues", "delete", "moved")


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["queues", "delete", "none"], 1, "refused (404): no queue 'none' in vhost '/'"),
        (["--password", "wrong", "queues", "list"], 1, "login refused; give --user and --password"),
        (["--url", "http://127.0.0.1:1", "queues", "list"], 1, "is the broker running"),
        (["--url", "nonsense", "queues", "list"], 2, "is not a URL"),
        (["users", "add", "guest", "--password", "x"], 2, "user 'guest' exists"),
        (["definitions", "import", "/nowhere.json"], 2, "/nowhere.json cannot be read"),
        (["queues", "declare", "q", "--arguments", "nonsense"], 2, "must be a JSON object"),
        (["queues", "lst"], 2, "No such command 'lst'"),
    ],
)
def test_a_failure_is_one_sentence(ctl: Ctl, words: list[str], code: int, sentence: str) -> None:
    printed = ctl(*words, code=code)
    assert printed.startswith("tidemark: ")
    assert sentence in printed
    assert len(printed.splitlines()) == 1


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 0
    assert re.match(r"tidemark \d+\.\d+\.\d+", capsys.readouterr().out)


@pytest.mark.parametrize("words", [["--help"], ["serve", "--help"], ["ctl", "--help"], ["store", "--help"]])
def test_help_teaches(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 0
    assert "Usage" in capsys.readouterr().out


def test_a_store_that_is_not_there_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["store", "check", str(tmp_path / "none")]) == 2
    assert "there is no such directory" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_a_table_aligns_text_left_and_numbers_right() -> None:
    rows = [{"name": "a", "ready": 5, "ok": True}, {"name": "long", "ready": 1000, "ok": False}]
    assert table(rows, ("name", "ready", "ok")) == "name  ready  ok\na         5  yes\nlong   1000  no"


def test_a_broker_that_stands_alone_says_so_and_takes_no_commands_of_a_member(ctl: Ctl) -> None:
    assert ctl("member", "status", "--expect", "alone") == ""
    assert json.loads(ctl("member", "status", "--json"))["state"] == "alone"
    assert "is alone, it does not lead" in ctl("member", "status", "--is-leader", code=1)
    assert ctl("member", "promote", code=1) == "tidemark: this broker stands alone: see cluster.name\n"
    assert "there is no state 'up'" in ctl("member", "status", "--expect", "up", code=2)
    assert ctl("member", "dance", code=2)
    assert ctl("member", "drop", code=2)


def test_only_an_administrator_may_give_a_member_commands(ctl: Ctl) -> None:
    ctl("users", "add", "eve", "--password", "secret", "--tags", "monitoring")
    as_eve = ("--user", "eve", "--password", "secret", "member")

    assert "alone" in ctl(*as_eve, "status")
    for command in (("promote",), ("demote",), ("drop", "n2"), ("shutdown",)):
        assert "Not administrator" in ctl(*as_eve, *command, code=1)


def test_no_answer_has_an_exit_code_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TIDEMARK_URL", "http://127.0.0.1:1")
    for command in (
        ("status",),
        ("promote",),
        ("shutdown",),
        ("status", "--expect", "ready", "--wait", "0.2"),
    ):
        assert main(["ctl", "member", *command]) == 3
        assert "no answer from http://127.0.0.1:1" in capsys.readouterr().err
