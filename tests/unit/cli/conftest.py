"""A real broker for the tests of commands, and commands run as functions; and a cluster of processes that do nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers.broker import BrokerProcess
from unit.cli.toys import Toys, toys

from tidemark.cli import main

Run = Callable[..., str]


@pytest.fixture(scope="package")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    process = BrokerProcess(
        tmp_path_factory.mktemp("cli") / "data", "--limits.disk-free-bytes-min", "64MiB"
    ).start()
    yield process
    process.stop()


@pytest.fixture
def admin_url(broker: BrokerProcess) -> str:
    return f"http://{broker.admin.host}:{broker.admin.port}"


@pytest.fixture
def tidemark(
    admin_url: str, broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """Runs `tidemark …`, which ends with this code; what it printed, or how it complained."""
    for name in ("USER", "PASSWORD", "PASSWORD_FILE", "CA_FILE", "VHOST", "CONFIG"):
        monkeypatch.delenv(f"TIDEMARK_{name}", raising=False)
    monkeypatch.setenv("TIDEMARK_URL", admin_url)
    monkeypatch.setenv("TIDEMARK_AMQP_URL", broker.address.url())

    def run(*words: str, code: int = 0) -> str:
        capsys.readouterr()
        ended = main(list(words))
        printed = capsys.readouterr()
        assert ended == code, printed.out + printed.err
        return printed.err if code and printed.err else printed.out

    return run


@pytest.fixture
def ctl(tidemark: Run) -> Run:
    """The same for `tidemark ctl …`."""
    return lambda *words, code=0: tidemark("ctl", *words, code=code)


@pytest.fixture
def here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Toys]:
    """`tidemark cluster …` in a directory of its own."""
    with toys(tmp_path, monkeypatch, capsys) as made:
        yield made
