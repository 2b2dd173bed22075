"""A real etcd for tests of clusters, and clusters of real brokers.

Clusters are shared by the tests of a module: starting three brokers takes longer than most tests. A test gets a
cluster that is whole: one member leads, the others are ready. If the one before left it in a state from which it does
not come back, that is its failure and not the next one's, which gets another.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.etcd import PROGRAM, Etcd
from system.cluster.cluster import Cluster, CommandError

from tidemark.cli.trial import Mode

MODES: list[Mode] = ["standby", "chain"]
LOG_LINES = 60


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    """An etcd of this test alone, which it may freeze, kill and restart."""
    if shutil.which(PROGRAM) is None:
        assert not os.environ.get("CI"), "etcd is missing: apt-get install etcd-server"
        pytest.skip("etcd is not installed: apt-get install etcd-server")
    running = Etcd(tmp_path / "etcd").start()
    yield running
    running.close()


class Pool:
    """One cluster at a time, made when it is wanted."""

    def __init__(self, directory: Path, mode: Mode, proxies: bool) -> None:
        self._directory = directory
        self._mode = mode
        self._proxies = proxies
        self._made = 0
        self._current: Cluster | None = None

    def whole(self) -> Cluster:
        if self._current is not None:
            try:
                return self._current.whole(20)
            except (CommandError, AssertionError):
                self.discard()
        self._made += 1
        self._current = Cluster(self._directory / f"{self._made}", self._mode, proxies=self._proxies)
        return self._current.start()

    def discard(self) -> None:
        """Another one for the next test."""
        if self._current is not None:
            self._current.close()
            self._current = None


def _pool(request: pytest.FixtureRequest, directory: Path, proxies: bool) -> Iterator[Pool]:
    if shutil.which(PROGRAM) is None:
        assert not os.environ.get("CI"), "etcd is missing: apt-get install etcd-server"
        pytest.skip("etcd is not installed: apt-get install etcd-server")
    pool = Pool(directory, request.param, proxies)
    yield pool
    pool.discard()


def _lent(request: pytest.FixtureRequest, pool: Pool) -> Iterator[Cluster]:
    failed = request.session.testsfailed
    cluster = pool.whole()
    yield cluster
    differing = [name for name in cluster.trial.members if "members differ" in cluster.log(name)]
    if differing:
        pool.discard()
    assert not differing, f"{', '.join(differing)} held something else than the leader"
    if request.session.testsfailed > failed:
        for name in cluster.trial.members:
            lines = cluster.log(name).splitlines()[-LOG_LINES:]
            print(f"--- {name}: {cluster.trial.log(name)}", *lines, sep="\n")
        pool.discard()


@pytest.fixture(scope="module", params=MODES)
def pool(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    yield from _pool(request, tmp_path_factory.mktemp(f"cluster-{request.param}"), proxies=False)


@pytest.fixture(scope="module", params=MODES)
def linked_pool(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    yield from _pool(request, tmp_path_factory.mktemp(f"linked-{request.param}"), proxies=True)


@pytest.fixture
def cluster(request: pytest.FixtureRequest, pool: Pool) -> Iterator[Cluster]:
    """Three members whose links are direct, in each mode."""
    yield from _lent(request, pool)


@pytest.fixture
def linked_cluster(request: pytest.FixtureRequest, linked_pool: Pool) -> Iterator[Cluster]:
    """Three members with a proxy on every link between them and to etcd, in each mode."""
    yield from _lent(request, linked_pool)
