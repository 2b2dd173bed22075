"""The picture of a cluster while its members die: three real brokers, a real etcd, a real browser."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from helpers.etcd import PROGRAM
from playwright.sync_api import Page, expect
from system.cluster.cluster import Cluster
from web.conftest import PATIENCE_MS, Shoot, Visitors

SLOW_MS = 3 * PATIENCE_MS


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if shutil.which(PROGRAM) is None:
        assert not os.environ.get("CI"), "etcd is missing: apt-get install etcd-server"
        pytest.skip("etcd is not installed: apt-get install etcd-server")
    made = Cluster(tmp_path_factory.mktemp("cluster-web"), "chain").start()
    yield made
    made.close()


class Member:
    """Looks to `Visitors.enter` like a site."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.url = f"http://{cluster.trial.members[name].admin}"

    def at(self, address: str) -> str:
        return f"{self.url}/#{address}"


def entered(visitors: Visitors, cluster: Cluster, name: str) -> Page:
    member = Member(cluster, name)
    page = visitors.enter(member)  # type: ignore[arg-type]
    page.goto(member.at("/cluster"))
    expect(page.locator("svg.picture .box")).to_have_count(3)
    return page


def test_a_member_that_dies_is_seen_in_the_picture_and_so_is_its_return(
    cluster: Cluster, visitors: Visitors, shoot: Shoot
) -> None:
    page = entered(visitors, cluster, cluster.leader)
    victim = cluster.backups[-1]
    expect(page.locator("svg.picture .edge")).to_have_count(2)
    expect(page.locator("svg.picture .box.gone")).to_have_count(0)
    shoot(page, "cluster")

    cluster.kill(victim)
    expect(page.locator(f"svg.picture .box.gone[data-id='{victim}']")).to_be_visible(timeout=SLOW_MS)
    expect(page.get_by_text(f"{victim} is not there.")).to_be_visible()
    shoot(page, "cluster-member-died")

    cluster.restart(victim)
    expect(page.locator("svg.picture .box.gone")).to_have_count(0, timeout=SLOW_MS)
    cluster.whole()


def test_a_follower_says_so_and_shows_the_takeover_when_its_leader_dies(
    cluster: Cluster, visitors: Visitors, shoot: Shoot
) -> None:
    cluster.whole()
    leader, follower = cluster.leader, cluster.second
    page = entered(visitors, cluster, follower)
    expect(page.locator(".banners")).to_contain_text(f"{follower} follows: {leader} leads")
    link = page.locator(".banners").get_by_role("link", name=f"Open {leader}")
    assert (link.get_attribute("href") or "").startswith(Member(cluster, leader).url)

    visitors.expected = ["503", "ERR_"]
    cluster.kill(leader)
    expect(page.locator(f"svg.picture .box.gone[data-id='{leader}']")).to_be_visible(timeout=SLOW_MS)
    expect(page.locator("svg.picture .box.strong")).to_have_count(1, timeout=SLOW_MS)
    now = cluster.leader
    expect(page.locator(f"svg.picture .box.strong[data-id='{now}']")).to_be_visible(timeout=SLOW_MS)
    history = page.get_by_role("table", name="Takeovers").locator("tbody tr")
    expect(history.first).to_contain_text(leader, timeout=SLOW_MS)
    expect(history.first).to_contain_text(now)
    shoot(page, "cluster-takeover")
