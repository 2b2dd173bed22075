"""`tidemark ctl` and its siblings, run as functions against a real broker."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pika
import pytest
from helpers.broker import BrokerProcess
from helpers.certificates import self_signed

from tidemark.cli import main
from tidemark.cli.ctl.pipelines import summed
from tidemark.cli.output import show, table

Ctl = Callable[..., str]


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
    ctl("users", "delete", "piped")


def test_queues_are_declared_listed_purged_and_deleted(ctl: Ctl) -> None:
    ctl("queues", "declare", "a/b", "--arguments", '{"x-max-length": 5}')

    [queue] = json.loads(ctl("queues", "list", "--vhost", "/", "--json"))
    assert (queue["name"], queue["arguments"]) == ("a/b", {"x-max-length": 5})
    assert re.search(r"^/ +a/b +classic +main +yes +0 +0 +0$", ctl("queues", "list"), re.MULTILINE)
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
        (["--password", "wrong", "queues", "list"], 2, "login refused; give --user and --password"),
        (["--url", "http://127.0.0.1:1", "queues", "list"], 3, "is the broker running"),
        (["--url", "nonsense", "queues", "list"], 2, "is not a URL"),
        (["users", "add", "guest", "--password", "x"], 2, "user 'guest' exists"),
        (["definitions", "import", "/nowhere.json"], 2, "/nowhere.json cannot be read"),
        (["queues", "declare", "q", "--arguments", "nonsense"], 2, "must be a JSON object"),
        (["queues", "lst"], 2, "No such command 'lst'"),
        (["connections", "close", "c", "--reason", "a\r\nX-Evil: 1"], 2, "cannot be sent"),
        (["queues", "show", "\udcff"], 1, "refused (404)"),
    ],
)
def test_a_failure_is_one_sentence(ctl: Ctl, words: list[str], code: int, sentence: str) -> None:
    printed = ctl(*words, code=code)
    assert printed.startswith("tidemark: ")
    assert sentence in printed
    assert len(printed.splitlines()) == 1


def test_a_queue_is_shown_whole_and_lists_show_the_columns_that_are_asked_for(ctl: Ctl) -> None:
    ctl("queues", "declare", "c1", "--auto-delete")
    ctl("queues", "declare", "c2", "--type", "quorum")

    assert re.search(r"^auto_delete +yes$", ctl("queues", "show", "c1"), re.MULTILINE)
    assert json.loads(ctl("queues", "show", "c2", "--json"))["type"] == "quorum"
    assert ctl("queues", "list", "--columns", "name,type").splitlines() == [
        "name  type",
        "c1    classic",
        "c2    quorum",
    ]
    reversed_ = ctl("queues", "list", "--columns", "type,name", "--sort", "name", "--reverse")
    assert [line.split()[1] for line in reversed_.splitlines()[1:]] == ["c2", "c1"]
    assert json.loads(ctl("queues", "list", "--columns", "name", "--json")) == [
        {"name": "c1"},
        {"name": "c2"},
    ]
    assert "there is no column 'colour'" in ctl("queues", "list", "--columns", "colour", code=2)
    ctl("queues", "delete", "c1")
    ctl("queues", "delete", "c2")


def test_a_list_can_be_narrowed_by_name_and_number(ctl: Ctl) -> None:
    for name in ("in-1", "in-2", "out-1"):
        ctl("queues", "declare", name)

    def names(*words: str) -> list[str]:
        return [one["name"] for one in json.loads(ctl("queues", "list", "--json", *words))]

    assert names("--name", "in-") == ["in-1", "in-2"]
    assert names("--name", "^.*-1$", "--regex") == ["in-1", "out-1"]
    assert names("--name", "-", "--limit", "2", "--sort", "name", "--reverse") == ["out-1", "in-2"]
    for name in ("in-1", "in-2", "out-1"):
        ctl("queues", "delete", name)


def test_exchanges_and_bindings_are_declared_shown_and_deleted(ctl: Ctl) -> None:
    ctl("queues", "declare", "bound")
    ctl(
        "exchanges",
        "declare",
        "news",
        "--type",
        "topic",
        "--arguments",
        '{"alternate-exchange": "amq.fanout"}',
    )
    ctl("bindings", "declare", "news", "bound", "--key", "a.*")
    ctl("bindings", "declare", "news", "bound", "--key", "b", "--arguments", '{"x": 1}')
    ctl("bindings", "declare", "news", "amq.direct", "--to", "exchange", "--key", "c")

    assert json.loads(ctl("exchanges", "show", "news", "--json"))["type"] == "topic"
    assert re.search(r"^/ +news +queue +bound +a\.\*$", ctl("bindings", "list"), re.MULTILINE)
    assert re.search(r"^/ +news +exchange +amq.direct +c$", ctl("bindings", "list"), re.MULTILINE)
    assert "has the key 'z'" in ctl("bindings", "delete", "news", "bound", "--key", "z", code=1)
    ctl("bindings", "delete", "news", "bound", "--key", "b")
    ctl("bindings", "delete", "news", "amq.direct", "--to", "exchange", "--key", "c")
    left = [row for row in json.loads(ctl("bindings", "list", "--json")) if row["source"] == "news"]
    assert [row["routing_key"] for row in left] == ["a.*"]
    ctl("exchanges", "delete", "news")
    ctl("queues", "delete", "bound")


def test_a_message_is_published_looked_at_and_taken(
    ctl: Ctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ctl("queues", "declare", "letters")
    file = tmp_path / "body"
    file.write_bytes(b"\x00\xff")
    ctl("publish", "letters", "héllo", "--persistent", "--properties", '{"headers": {"n": 1}}')
    ctl("publish", "letters", "--file", str(file))

    assert "héllo" in ctl("get", "letters")
    assert "delivery_mode=2" in ctl("get", "letters")
    first, second = json.loads(ctl("get", "letters", "--count", "5", "--then", "ack", "--json"))
    assert (first["payload"], first["properties"]["headers"]) == ("héllo", {"n": 1})
    assert (second["payload"], second["payload_encoding"]) == ("AP8=", "base64")
    assert "has no message" in ctl("get", "letters", code=1)
    assert "no queue took it" in ctl("publish", "nowhere", "x", code=1)
    ctl("queues", "delete", "letters")


def test_policies_and_limits_are_set_listed_and_cleared(ctl: Ctl) -> None:
    ctl("queues", "declare", "limited")
    ctl("policies", "set", "short", "^lim", '{"max-length": 5}', "--priority", "3", "--apply-to", "queues")
    ctl("operator-policies", "set", "cap", "^lim", '{"max-length": 2}')

    assert json.loads(ctl("policies", "show", "short", "--json"))["priority"] == 3
    assert re.search(r"^/ +cap +\^lim +queues +0 ", ctl("operator-policies", "list"), re.MULTILINE)
    assert json.loads(ctl("queues", "show", "limited", "--json"))["policy"] == "short"
    assert "must be a JSON object" in ctl("policies", "set", "p", ".", "nonsense", code=2)
    for words in (
        ("policies", "clear", "short"),
        ("operator-policies", "clear", "cap"),
        ("queues", "delete", "limited"),
    ):
        ctl(*words)
    assert json.loads(ctl("policies", "list", "--json")) == []

    ctl("limits", "set", "max-queues", "50", "--vhost", "/")
    ctl("limits", "set", "max-channels", "7", "--user", "guest")
    assert re.search(r"^vhost +/ +max-queues +50$", ctl("limits", "list"), re.MULTILINE)
    assert re.search(
        r"^user +guest +max-channels +7$", ctl("limits", "list", "--user", "guest"), re.MULTILINE
    )
    assert "either --vhost or --user" in ctl("limits", "set", "max-queues", "1", code=2)
    assert "a user has no limit 'max-queues'" in ctl(
        "limits", "set", "max-queues", "1", "--user", "guest", code=2
    )
    ctl("limits", "clear", "max-queues", "--vhost", "/")
    ctl("limits", "clear", "max-channels", "--user", "guest")
    assert json.loads(ctl("limits", "list", "--json")) == []


def test_parameters_are_set_and_cleared(ctl: Ctl) -> None:
    ctl("global-parameters", "set", "greeting", '"hello"')
    assert json.loads(ctl("global-parameters", "show", "greeting", "--json"))["value"] == "hello"
    ctl("global-parameters", "clear", "greeting")
    assert "greeting" not in ctl("global-parameters", "list")
    assert "VALUE must be JSON" in ctl("global-parameters", "set", "greeting", "hello", code=2)


def test_a_connection_is_shown_and_closed_with_a_reason(ctl: Ctl, broker: BrokerProcess) -> None:
    ctl("queues", "declare", "watched")
    there = pika.BlockingConnection(pika.ConnectionParameters(broker.address.host, broker.address.port))
    channel = there.channel()
    channel.basic_consume("watched", lambda *_: None, consumer_tag="watcher")

    [name] = [one["name"] for one in json.loads(ctl("connections", "list", "--json"))]
    assert json.loads(ctl("connections", "show", name, "--json"))["channels"] == 1
    [number] = [one["name"] for one in json.loads(ctl("channels", "list", "--json"))]
    assert json.loads(ctl("channels", "show", number, "--json"))["consumer_count"] == 1
    assert re.search(r"^/ +watched +watcher +yes ", ctl("consumers", "list"), re.MULTILINE)
    assert "no consumer has the tag" in ctl("consumers", "close", "nobody", code=1)
    assert "say which" in ctl("connections", "close", code=2)
    ctl("consumers", "close", "watcher", "--reason", "enough")
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="enough"):
        there.process_data_events(5)
    ctl("queues", "delete", "watched")


def test_health_says_whether_the_broker_is_well(ctl: Ctl) -> None:
    assert re.search(r"^alarms +ok$", ctl("health"), re.MULTILINE)
    assert "there is no check 'wealth'" in ctl("health", "wealth", code=2)
    assert re.search(r"^port-listener/1 +failed ", ctl("health", "port-listener/1", code=1), re.MULTILINE)
    ctl("--url", "http://127.0.0.1:1", "health", code=3)


def test_the_address_of_the_page_is_printed(ctl: Ctl, admin_url: str) -> None:
    assert ctl("open") == f"{admin_url}/#/\n"
    assert ctl("open", "queues", "a/b") == f"{admin_url}/#/queues/%2F/a%2Fb\n"
    assert "there is no page 'attic'" in ctl("open", "attic", code=2)


def test_streams_show_how_far_consumers_are_behind(ctl: Ctl, tidemark: Ctl, broker: BrokerProcess) -> None:
    url = f"tidemark://guest:guest@{broker.address.host}:{broker.address.port}/"
    ctl("streams", "declare", "tide", "--key", "explicit")
    tidemark("stream", "--url", url, "put", "tide", "k", "1")
    tidemark("stream", "--url", url, "tail", "tide", "--consumer", "late", "--idle", "0.3")
    tidemark("stream", "--url", url, "put", "tide", "k", "2")

    [mark] = json.loads(ctl("streams", "lag", "tide", "--json"))
    assert mark["consumer"] == "late"
    assert mark["behind"] > 0
    assert re.search(r"^/ +tide +late ", ctl("streams", "marks"), re.MULTILINE)
    ctl("pins", "create", "tide", "noon", "--lease", "60")
    assert re.search(r"^/ +tide +noon ", ctl("streams", "pins"), re.MULTILINE)
    ctl("pins", "release", "tide", "noon")
    assert json.loads(ctl("pins", "list", "--stream", "tide", "--json")) == []
    ctl("streams", "purge", "tide")
    assert json.loads(ctl("streams", "show", "tide", "--json"))["live"] == 0
    ctl("streams", "delete", "tide")


def test_the_password_may_come_from_a_file_or_be_asked_for_and_the_nearest_word_wins(
    ctl: Ctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ctl("users", "add", "filed", "--password", "s3cret", "--tags", "management")
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    right.write_text("s3cret\nmore\n")
    wrong.write_text("nonsense\n")
    as_filed = ("--user", "filed")

    assert "filed" in ctl(*as_filed, "--password-file", str(right), "whoami")
    assert "login refused" in ctl(*as_filed, "--password-file", str(wrong), "whoami", code=2)
    assert "cannot be read" in ctl(*as_filed, "--password-file", str(tmp_path / "none"), "whoami", code=2)
    monkeypatch.setenv("TIDEMARK_PASSWORD_FILE", str(wrong))
    assert "filed" in ctl(*as_filed, "--password", "s3cret", "whoami")
    monkeypatch.setenv("TIDEMARK_PASSWORD", "nonsense")
    assert "filed" in ctl(*as_filed, "--password-file", str(right), "whoami")
    monkeypatch.setattr("typer.prompt", lambda *_, **__: "s3cret")
    assert "filed" in ctl(*as_filed, "--ask-password", "whoami")
    monkeypatch.delenv("TIDEMARK_PASSWORD")
    monkeypatch.delenv("TIDEMARK_PASSWORD_FILE")
    ctl("users", "delete", "filed")


def test_a_broker_with_tls_is_trusted_by_its_authority_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    certificate, key = self_signed(tmp_path / "tls", "localhost", authority=True)
    other, _ = self_signed(tmp_path / "tls", "other", authority=True)
    secured = BrokerProcess(
        tmp_path / "data",
        "--listen.admins",
        "127.0.0.1:0",
        "--tls.certificate",
        str(certificate),
        "--tls.key",
        str(key),
    ).start()
    try:
        [place] = re.findall(r"admins=(\S+)", secured.ready_line)
        monkeypatch.setenv("TIDEMARK_URL", f"https://{place}")

        assert main(["ctl", "--ca-file", str(certificate), "whoami"]) == 0
        assert main(["ctl", "--ca-file", str(other), "whoami"]) == 3
        assert "is not trusted" in capsys.readouterr().err
        assert main(["ctl", "--ca-file", str(tmp_path / "none"), "whoami"]) == 2
    finally:
        secured.close()


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


def test_in_a_terminal_a_table_is_drawn_within_its_width(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    rows = [{"name": "[bold]" + "x" * 60, "ready": 5, "state": "running"}]

    show(rows, ("name", "ready", "state"), as_json=False)
    drawn = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    assert "[bold]" in drawn
    assert len(drawn.splitlines()) > 2
    assert max(map(len, drawn.splitlines())) <= 40


def test_a_broker_that_stands_alone_says_so_and_takes_no_commands_of_a_member(ctl: Ctl) -> None:
    assert ctl("member", "status", "--expect", "alone") == ""
    assert json.loads(ctl("member", "status", "--json"))["state"] == "alone"
    assert "is alone, it does not lead" in ctl("member", "status", "--is-leader", code=1)
    assert ctl("member", "promote", code=1) == "tidemark: this broker stands alone: see cluster.name\n"
    assert "there is no state 'up'" in ctl("member", "status", "--expect", "up", code=2)
    assert ctl("member", "dance", code=2)
    assert ctl("member", "drop", code=2)


def test_a_broker_that_stands_alone_is_its_only_member(ctl: Ctl) -> None:
    """K-62: `members histories` prints the takeover table; K-63: that of a fresh node has one row."""
    assert re.search(r"^tidemark +alone +leader +yes ", ctl("members", "list"), re.MULTILINE)
    assert json.loads(ctl("members", "show", "tidemark", "--json"))["state"] == "alone"
    assert "no member 'b' is known here" in ctl("members", "show", "b", code=1)
    assert ctl("members", "takeovers").startswith("at_ms")
    [row] = json.loads(ctl("members", "histories", "--json"))
    assert len(row["history"]) == 32


def test_pipelines_that_report_are_listed(ctl: Ctl) -> None:
    assert ctl("pipelines", "list").startswith("name")
    assert "reports here" in ctl("pipelines", "show", "nothing", code=1)


def test_the_sinks_of_a_pipeline_are_summed_up_in_its_row() -> None:
    sinks = [
        {"name": "lake", "rows": 5, "rows_per_s": 2.0, "lag_rows": 1},
        {"name": "cache", "rows": 7, "rows_per_s": None, "lag_rows": 0},
    ]
    [row] = summed([{"name": "orders", "state": "running", "sinks": sinks}])
    assert (row["sinks"], row["rows"], row["rows_per_s"], row["lag"]) == (["lake", "cache"], 12, 2.0, 1)


def test_only_an_administrator_may_give_a_member_commands(ctl: Ctl) -> None:
    ctl("users", "add", "eve", "--password", "secret", "--tags", "monitoring")
    as_eve = ("--user", "eve", "--password", "secret", "member")

    assert "alone" in ctl(*as_eve, "status")
    for command in (("promote",), ("demote",), ("drop", "n2"), ("refill",), ("shutdown",)):
        assert "Not administrator" in ctl(*as_eve, *command, code=1)


@pytest.mark.parametrize(
    "question", [("member", "status", "--is-leader"), ("member", "status", "--expect", "ready"), ("health",)]
)
def test_whoever_may_not_ask_is_not_told_no(ctl: Ctl, question: tuple[str, ...]) -> None:
    ctl("users", "add", "bob", "--password", "secret")

    assert "login refused" in ctl("--password", "wrong", *question, code=2)
    assert "refused (401)" in ctl("--user", "bob", "--password", "secret", *question, code=2)
    ctl("users", "delete", "bob")


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
