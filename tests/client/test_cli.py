"""`tidemark stream` and `tidemark ctl streams`, run as functions against a real broker."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from helpers.broker import BrokerProcess
from pyarrow import parquet

import tidemark.client
from tidemark.cli import main
from tidemark.client import Client
from tidemark.model.partitions import partition_of

Run = Callable[..., str]


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    started = BrokerProcess(tmp_path_factory.mktemp("cli") / "data").start()
    yield started
    started.stop()


@pytest.fixture
def run(
    process: BrokerProcess, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> Run:
    """Runs a command of `tidemark`; what it printed, on standard error when it fails or `err` says so."""
    monkeypatch.setenv("TIDEMARK_STREAM_URL", f"tidemark://127.0.0.1:{process.address.port}/")
    monkeypatch.setenv("TIDEMARK_URL", f"http://{process.admin.host}:{process.admin.port}")

    def call(*words: str, code: int = 0, err: bool = False, stdin: bytes | None = None) -> str:
        capsysbinary.readouterr()
        if stdin is not None:
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        assert main(list(words)) == code, capsysbinary.readouterr().err
        printed = capsysbinary.readouterr()
        return (printed.err if code or err else printed.out).decode()

    return call


@pytest.fixture
def db(process: BrokerProcess) -> Iterator[Client]:
    with tidemark.client.connect(f"tidemark://127.0.0.1:{process.address.port}/") as client:
        yield client


def lines(printed: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in printed.splitlines()]


def test_a_stream_is_created_listed_shown_grown_and_dropped(run: Run, name: str) -> None:
    run("stream", "create", name, "--key", "explicit", "--shards", "2")
    assert re.search(rf"^{name} +none +2 +0 ", run("stream", "list"), re.MULTILINE)
    assert any(one["name"] == name for one in json.loads(run("stream", "list", "--json")))
    assert re.search(r"^shards +2$", run("stream", "show", name), re.MULTILINE)
    assert run("stream", "grow", name, "4") == f"{name} has 4 shards\n"
    assert json.loads(run("stream", "show", name, "--json"))["shards"] == 4
    run("stream", "drop", name)
    assert "no stream" in run("stream", "show", name, code=1)


def test_rows_are_put_got_and_deleted(run: Run, name: str) -> None:
    run("stream", "create", name)
    assert re.match(r"stored at sequence \d+ of history [0-9a-f]{32}$", run("stream", "put", name, "k", "v1"))
    receipt = json.loads(run("stream", "put", name, "k", "v2", "--header", "by=me", "--json"))
    assert run("stream", "get", name, "k") == "v2"
    row = json.loads(run("stream", "get", name, "k", "--json"))
    assert (row["value"], row["headers"], row["sequence"]) == ("v2", {"by": "me"}, receipt["sequence"])

    assert "but was expected" in run("stream", "put", name, "k", "v3", "--expected", "0", code=1)
    run("stream", "put", name, "k", "--expected", str(receipt["sequence"]), stdin=b"from a pipe\n")
    assert run("stream", "get", name, "k") == "from a pipe\n"
    run("stream", "delete", name, "k")
    assert f"stream '{name}' has no value for key 'k'" in run("stream", "get", name, "k", code=1)


def test_lines_of_standard_input_are_rows(run: Run, db: Client, name: str) -> None:
    run("stream", "create", name)
    given = (
        b'a\tone\n{"key": "b", "value": "two", "headers": {"n": 1}}\n'
        b'{"key_base64": "/w==", "value_base64": "AP8="}\n{"key": "j", "value": {"x": 1}}\n'
        b'{"key": "a", "deleted": true}\n'
    )
    assert "5 rows stored" in run("stream", "put", name, stdin=given)

    found = {row.key: row for row in db.stream(name).snapshot()}
    assert (found[b"b"].value, found[b"b"].headers) == (b"two", {"n": 1})
    assert found[b"\xff"].value == b"\x00\xff"
    assert json.loads(found[b"j"].value) == {"x": 1}
    assert found[b"a"].deleted


def test_the_same_input_of_a_producer_is_stored_once(run: Run, db: Client, name: str) -> None:
    run("stream", "create", name, "--key", "none")
    rows = [b"%d\n" % n for n in range(10)]
    producer = f"{name}-import"
    run("stream", "put", name, "--producer", producer, "--batch", "3", stdin=b"".join(rows[:7]))
    printed = run("stream", "put", name, "--producer", producer, "--batch", "3", stdin=b"".join(rows))
    assert "3 rows stored" in printed
    run("stream", "put", name, "--producer", producer, stdin=b"".join(rows))
    assert [row.value for row in db.stream(name).snapshot()] == [b"%d" % n for n in range(10)]


@pytest.mark.parametrize("form", ["jsonl", "csv", "arrow", "parquet"])
def test_a_snapshot_is_written_in_every_format(
    run: Run, db: Client, name: str, tmp_path: Path, form: str
) -> None:
    stream = db.stream(name, create=True)
    stream.put_many((f"k{n}", b"v%d" % n) for n in range(20))
    stream.delete("k3")
    out = tmp_path / f"rows.{form}"

    said = run("stream", "snapshot", name, "--format", form, "--out", str(out), err=True)

    assert re.search(r"19 values and 1 deletes up to sequence \d+ .*: verified$", said)
    match form:
        case "jsonl":
            rows = lines(out.read_text())
            assert rows[0]["value"] == "v0" and rows[-1] == {
                "key": "k3", "deleted": True, **{k: rows[-1][k] for k in ("sequence", "timestamp_ms")},
            }  # fmt: skip
        case "csv":
            assert out.read_text().splitlines()[1].startswith("k0,v0,,")
            assert len(out.read_text().splitlines()) == 21
        case "arrow":
            assert pa.ipc.open_stream(out).read_all().num_rows == 20
        case "parquet":
            assert parquet.read_table(out).column("value").to_pylist()[0] == b"v0"
    assert [one.name for one in tmp_path.iterdir()] == [out.name]


def test_a_snapshot_goes_to_standard_output_in_parts_and_of_the_past(run: Run, db: Client, name: str) -> None:
    stream = db.stream(name, create=True, history=3600)
    first = stream.put_many([("a", b"1"), ("b", b"1")])
    stream.put("b", b"2")
    stream.pin("held", lease=60)
    stream.put("b", b"3")

    assert [row["value"] for row in lines(run("stream", "snapshot", name))] == ["1", "3"]
    assert [row["value"] for row in lines(run("stream", "snapshot", name, "--pin", "held"))] == ["1", "2"]
    assert [row["value"] for row in lines(run("stream", "snapshot", name, "--at", str(first.sequence)))] == [
        "1", "1",
    ]  # fmt: skip
    assert [row["key"] for row in lines(run("stream", "snapshot", name, "--after", str(first.sequence)))] == [
        "b"
    ]
    assert [row["key"] for row in lines(run("stream", "snapshot", name, "--key-from", "b"))] == ["b"]
    assert run("stream", "snapshot", name, "--as-of", "2999-01-01T00:00:00").count("\n") == 2
    assert lines(run("stream", "snapshot", name, "--columns", "key"))[0]["key"] == "a"


def test_an_empty_stream_is_an_empty_file_of_its_format(
    run: Run, db: Client, name: str, tmp_path: Path
) -> None:
    db.stream(name, create=True)
    for form in ("arrow", "parquet"):
        run("stream", "snapshot", name, "--format", form, "--out", str(tmp_path / form))
    assert pa.ipc.open_stream(tmp_path / "arrow").read_all().num_rows == 0
    assert parquet.read_table(tmp_path / "parquet").num_rows == 0


def test_rows_are_followed(run: Run, db: Client, name: str) -> None:
    stream = db.stream(name, create=True)
    stream.put("a", b"1")
    stream.put("b", b"\xff")
    stream.delete("a")

    text = run("stream", "tail", name, "--from", "first", "--idle", "0.3", "--markers")
    assert re.search(r"^\d+\t\S+\tb\tb'\\xff'$", text, re.MULTILINE)
    assert re.search(r"^\d+\t\S+\ta\t\(deleted\)$", text, re.MULTILINE)
    assert re.search(r"^-- boundary at \d+: 1 values, 1 deletes$", text, re.MULTILINE)
    found = lines(run("stream", "tail", name, "--consumer", "c", "--idle", "0.3", "--json"))
    assert [row["key"] for row in found] == ["b", "a"]
    assert run("stream", "tail", name, "--consumer", "c", "--idle", "0.3") == ""
    assert run("stream", "tail", name, "--from", "next", "--idle", "0.2") == ""


def test_pins_marks_and_differences(run: Run, db: Client, name: str) -> None:
    stream = db.stream(name, create=True)
    a = stream.put_many([("x", b"1"), ("y", b"1")])
    run("stream", "pin", name, "nightly", "--lease", "60")
    stream.put("x", b"2")
    b = stream.delete("y")

    assert re.search(rf"^nightly +{a.sequence} ", run("stream", "pins", name), re.MULTILINE)
    assert run("stream", "diff", name, str(a.sequence), str(b.sequence)) == "changed\tx\t2\ndeleted\ty\n"
    assert len(lines(run("stream", "diff", name, str(a.sequence), str(b.sequence), "--json"))) == 2
    run("stream", "unpin", name, "nightly")
    assert json.loads(run("stream", "pins", name, "--json")) == []

    stream.move_mark("c", a)
    [mark] = json.loads(run("stream", "marks", name, "--json"))
    assert (mark["consumer"], mark["sequence"]) == ("c", a.sequence)
    run("stream", "reset", name, "c")
    assert re.search(r"^c +0 ", run("stream", "marks", name), re.MULTILINE)
    run("stream", "forget", name, "c")
    assert json.loads(run("stream", "marks", name, "--json")) == []


def test_ctl_shows_streams_marks_and_pins_of_the_whole_broker(run: Run, db: Client, name: str) -> None:
    stream = db.stream(name, create=True)
    receipt = stream.put_many([("a", b"1"), ("b", b"2")])
    stream.move_mark("c", receipt)
    stream.pin("p", lease=60)
    stream.put("a", b"3")

    assert re.search(rf"^/ +{name} +none +1 +2 ", run("ctl", "streams", "list"), re.MULTILINE)
    assert run("ctl", "list", "streams", "--json") == run("ctl", "streams", "list", "--json")
    assert re.search(rf"^name +{name}$", run("ctl", "streams", "show", name), re.MULTILINE)
    [mark] = json.loads(run("ctl", "marks", "list", "--stream", name, "--json"))
    assert (mark["consumer"], mark["sequence"], mark["behind"] > 0) == ("c", receipt.sequence, True)
    assert any(one["stream"] == name for one in json.loads(run("ctl", "list", "marks", "--json")))
    [pin] = json.loads(run("ctl", "pins", "list", "--stream", name, "--json"))
    assert (pin["name"], pin["sequence"], pin["messages_kept"]) == ("p", receipt.sequence, 1)
    assert re.search(rf"^/ +{name} +p +{receipt.sequence} ", run("ctl", "list", "pins"), re.MULTILINE)

    run("ctl", "pins", "release", name, "p")
    run("ctl", "marks", "reset", name, "c", "--to", "0")
    assert json.loads(run("ctl", "marks", "list", "--stream", name, "--json"))[0]["sequence"] == 0
    run("ctl", "marks", "delete", name, "c")
    run("ctl", "streams", "delete", name)
    assert name not in run("ctl", "streams", "list")


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["--url", "nonsense", "list"], 2, "--url: 'nonsense' is not a URL such as tidemark://"),
        (
            ["--url", "tidemark://127.0.0.1:1", "--timeout", "0.2", "list"],
            1,
            "no broker answers at 127.0.0.1:1",
        ),
        (["get", "no-such-stream", "k"], 1, "no-such-stream"),
        (["snapshot", "x", "--format", "xml"], 2, "--format 'xml' is not one of jsonl, csv, arrow, parquet"),
        (["snapshot", "x", "--at", "1", "--pin", "p"], 2, "give one of --at, --as-of and --pin"),
        (["tail", "x", "--from", "yesterday"], 2, "--from 'yesterday' is no time"),
        (["put", "x", "k", "v", "--header", "h"], 2, "--header 'h' is not NAME=VALUE"),
        (["put", "x", "--expected", "1"], 2, "are for a row that is given as KEY VALUE"),
    ],
)
def test_a_failure_is_one_sentence(run: Run, words: list[str], code: int, sentence: str) -> None:
    printed = run("stream", *words, code=code)
    assert printed.startswith("tidemark: ") and sentence in printed
    assert len(printed.splitlines()) == 1


def test_wrong_input_names_its_line(run: Run, name: str) -> None:
    run("stream", "create", name)
    wrong = b'a\t1\n{"key": "x"\n'
    assert "line 2 of the input is not a row" in run("stream", "put", name, code=2, stdin=wrong)
    assert 'line 1 of the input has no "value"' in run("stream", "put", name, code=2, stdin=b'{"key": "x"}\n')


def test_help_teaches(run: Run) -> None:
    assert "snapshot" in run("stream", "--help")
    assert "--format" in run("stream", "snapshot", "--help")


def test_a_queue_that_is_no_stream_is_told_apart_by_ctl(run: Run, name: str) -> None:
    run("ctl", "queues", "declare", name)
    assert "is not a stream" in run("ctl", "streams", "show", name, code=1)
    run("ctl", "queues", "delete", name)


def test_a_stream_is_truncated_and_purged(run: Run, name: str) -> None:
    run("stream", "create", name, "--key", "log")
    sequences = [json.loads(run("stream", "put", name, "k", "v", "--json"))["sequence"] for _ in range(3)]
    assert run("stream", "truncate", name, str(sequences[0])) == (
        f"1 rows of {name} up to sequence {sequences[0]} have ended\n"
    )
    assert json.loads(run("stream", "purge", name, "--json")) == {"stream": name, "ended": 2}
    assert run("stream", "snapshot", name) == ""
    assert "newest sequence" in run("stream", "truncate", name, str(10**15), code=1)


# Partitioned streams ----------------------------------------------------------------------------------


def test_a_partitioned_stream_is_created_shown_used_and_dropped(run: Run, name: str) -> None:
    run("stream", "create", name, "--partitions", "3")
    for key in ("a", "b", "c", "d"):
        run("stream", "put", name, key, f"value of {key}")
    assert run("stream", "get", name, "c") == "value of c"
    run("stream", "delete", name, "c")
    assert "no value" in run("stream", "get", name, "c", code=1)

    shown = run("stream", "show", name)
    assert [line.split()[:2] for line in shown.splitlines()[1:]] == [
        [f"{name}-{n}", "main"] for n in range(3)
    ]
    assert sum(one["live"] for one in json.loads(run("stream", "show", name, "--json"))) == 3
    assert re.search(rf"^name +{name}-1$", run("stream", "show", name, "--partition", "1"), re.MULTILINE)
    assert re.search(rf"^{name}-2 .* main$", run("stream", "list"), re.MULTILINE)

    run("stream", "drop", name)
    assert "no stream" in run("stream", "show", name, code=1)
    assert "no stream" in run("stream", "drop", name, code=1)


def test_a_partition_can_be_chosen_but_not_a_wrong_one(run: Run, name: str) -> None:
    run("stream", "create", name, "--partitions", "2")
    right = partition_of(b"k", 2)
    run("stream", "put", name, "k", "v", "--partition", str(right))
    assert run("stream", "get", name, "k", "--partition", str(right)) == "v"
    assert "no value" in run("stream", "get", name, "k", "--partition", str(1 - right), code=1)

    problem = f"key 'k' belongs to partition {right} of '{name}', not to {1 - right}"
    assert problem in run("stream", "put", name, "k", "v", "--partition", str(1 - right), code=2)
    assert problem in run("stream", "put", name, "--partition", str(1 - right), stdin=b"k\tv\n", code=2)
    assert problem in run("stream", "delete", name, "k", "--partition", str(1 - right), code=2)
    assert "partitions 0 to 1, and no 2" in run("stream", "show", name, "--partition", "2", code=2)


def test_lines_are_split_by_their_keys_and_the_same_input_again_stores_nothing_twice(
    run: Run, name: str
) -> None:
    run("stream", "create", name, "--partitions", "3", "--key", "log")
    lines = b"".join(b"k%d\tv%d\n" % (n, n) for n in range(50)) + b"no key\n" * 7
    printed = run("stream", "put", name, "--producer", "import", "--batch", "10", stdin=lines)
    assert printed == "57 rows stored in 3 of 3 partitions\n"
    again = json.loads(
        run("stream", "put", name, "--producer", "import", "--batch", "17", "--json", stdin=lines)
    )
    assert again == {"rows": 0, "partitions": [None] * 3}
    more = run("stream", "put", name, "--producer", "import", stdin=lines + b"k1\tnew\n")
    assert more == "1 rows stored in 1 of 3 partitions\n"
    assert run("stream", "put", name, stdin=b"k1\tw\nk2\tw\n").startswith("2 rows stored in ")
    assert sum(one["live"] for one in json.loads(run("stream", "show", name, "--json"))) == 60


@pytest.mark.parametrize("form", ["jsonl", "csv", "arrow", "parquet"])
def test_a_snapshot_has_all_partitions_or_the_one_that_is_chosen(
    run: Run, name: str, tmp_path: Path, form: str
) -> None:
    run("stream", "create", name, "--partitions", "3")
    run("stream", "put", name, stdin=b"".join(b"k%02d\tv\n" % n for n in range(20)))
    file = tmp_path / "rows"
    told = run("stream", "snapshot", name, "--format", form, "--out", str(file), err=True)
    assert re.findall(r"^partition (\d): \d+ values .* verified$", told, re.MULTILINE) == ["0", "1", "2"]
    match form:
        case "parquet":
            assert parquet.read_table(file).num_rows == 20
        case "arrow":
            assert pa.ipc.open_stream(file.read_bytes()).read_all().num_rows == 20
        case _:
            assert len(file.read_text().splitlines()) == 20 + (form == "csv")

    one = run("stream", "snapshot", name, "--partition", "1", "--after", "1")
    assert {partition_of(str(row["key"]).encode(), 3) for row in lines(one)} == {1}
    assert "--partition" in run("stream", "snapshot", name, "--after", "1", code=2)


def test_a_tail_of_all_partitions_says_where_each_row_is(run: Run, name: str) -> None:
    run("stream", "create", name, "--partitions", "3")
    run("stream", "put", name, stdin=b"".join(b"k%02d\tv\n" % n for n in range(20)))
    rows = lines(run("stream", "tail", name, "--from", "first", "--idle", "0.3", "--markers", "--json"))
    assert {row["partition"] for row in rows if "marker" in row} == {0, 1, 2}
    found = [row for row in rows if "key" in row]
    assert len(found) == 20
    assert all(partition_of(str(row["key"]).encode(), 3) == row["partition"] for row in found)

    text = run("stream", "tail", name, "--consumer", "printer", "--idle", "0.3").splitlines()
    assert {line.split("\t")[0] for line in text} == {"0", "1", "2"} and len(text) == 20
    assert run("stream", "tail", name, "--consumer", "printer", "--idle", "0.3") == ""
    one = lines(run("stream", "tail", name, "--partition", "2", "--from", "0", "--idle", "0.3", "--json"))
    assert [row["key"] for row in one] == [row["key"] for row in found if row["partition"] == 2]
    assert "with --partition" in run("stream", "tail", name, "--from", "7", code=2)


def test_what_is_done_with_one_stream_only_says_so(run: Run, name: str) -> None:
    run("stream", "create", name, "--partitions", "2", "--groups", "main")
    for command in (["pins", name], ["marks", name], ["purge", name], ["diff", name, "0", "1"]):
        assert f"one of {name}-0 to {name}-1" in run("stream", *command, code=2)
    assert run("stream", "purge", f"{name}-0") == f"0 rows of {name}-0 have ended\n"
    assert "--partitions" in run("stream", "create", name, "--groups", "main", code=2)


def test_a_partitioned_stream_that_misses_a_partition_says_so_and_is_made_whole_or_dropped(
    run: Run, name: str
) -> None:
    run("stream", "create", name, "--partitions", "2")
    run("stream", "drop", f"{name}-1")
    assert f"partition 1 of stream '{name}'" in run("stream", "show", name, code=1)
    run("stream", "create", name, "--partitions", "2")
    run("stream", "drop", f"{name}-0")
    run("stream", "drop", name)
    assert f"no stream '{name}'" in run("stream", "show", name, code=1)
