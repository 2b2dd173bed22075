"""The picture of a cluster while its members die: three real brokers, a real etcd, a real browser."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pika
import pytest
from helpers.amqp import eventually
from helpers.api import Api
from helpers.broker import parse_address
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


def administrator(cluster: Cluster, name: str) -> Api:
    return Api(parse_address(cluster.trial.members[name].admin))


def test_a_planned_change_of_the_leader_is_made_on_the_page(
    cluster: Cluster, visitors: Visitors, shoot: Shoot
) -> None:
    cluster.whole()
    before = cluster.leader
    address = parse_address(cluster.trial.members[before].amqp)
    with pika.BlockingConnection(pika.ConnectionParameters(address.host, address.port)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("planned", durable=True)
        channel.basic_publish("", "planned", b"kept", pika.BasicProperties(delivery_mode=2))
    visitors.expected = ["503", "ERR_"]
    page = entered(visitors, cluster, before)
    page.get_by_role("button", name="Hand over").click()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert cluster.leader == before

    page.get_by_role("button", name="Hand over").click()
    shoot(page, "cluster-hand-over")
    page.get_by_role("dialog").get_by_role("button", name="Hand over").click()
    expect(page.locator(f"svg.picture .box.strong:not([data-id='{before}'])")).to_be_visible(timeout=SLOW_MS)

    cluster.whole()
    now = cluster.leader
    assert now != before
    standing = administrator(cluster, before).get("/tidemark/standing")
    assert (standing["leads"], standing["leader"]) == (False, now)
    [newest, *_] = administrator(cluster, now).get("/takeovers")
    assert (newest["from"], newest["to"]) == (before, now)
    assert administrator(cluster, now).get("/queues/%2F/planned")["messages"] == 1
    # The page has followed: this member may now be asked to lead, and does.
    expect(page.locator(".banners")).to_contain_text(f"{before} follows: {now} leads")
    page.get_by_role("button", name="Lead", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Lead", exact=True).click()
    expect(page.locator(f"svg.picture .box.strong[data-id='{before}']")).to_be_visible(timeout=SLOW_MS)
    cluster.whole()
    assert cluster.leader == before


def test_every_page_of_a_follower_says_who_leads_and_what_is_refused_there_says_it_too(
    cluster: Cluster, visitors: Visitors, shoot: Shoot
) -> None:
    cluster.whole()
    leader, follower = cluster.leader, cluster.second
    administrator(cluster, leader)("PUT", "/users/few", {"password": "few-rights", "tags": "management"})
    rights = {"configure": ".*", "write": ".*", "read": ".*"}
    administrator(cluster, leader)("PUT", "/permissions/%2F/few", rights)
    eventually(lambda: administrator(cluster, follower)("GET", "/users/few").status_code == 200)
    member, other = Member(cluster, follower), Member(cluster, leader)
    visitors.expected = ["503"]
    # Also to a visitor who may not see the cluster, and without a push from the broker.
    page = visitors.open()
    page.route("**/api/live?*", lambda route: route.abort())
    visitors.expected.append("ERR_FAILED")
    body = {"username": "few", "password": "few-rights"}
    assert page.request.post(f"{member.url}/api/login", data=body, headers={"X-Tidemark": "1"}).ok
    page.goto(member.at("/queues"))
    banner = page.locator(".banners")
    expect(banner).to_contain_text(f"{follower} follows: {leader} leads")
    expect(banner.get_by_role("link", name=f"Open {leader}")).to_have_attribute("href", other.at("/queues"))
    page.goto(member.at("/streams"))
    expect(banner.get_by_role("link", name=f"Open {leader}")).to_have_attribute("href", other.at("/streams"))

    page.goto(member.at("/queues"))
    page.get_by_role("button", name="Declare a queue").first.click()
    page.get_by_role("textbox", name="Name", exact=True).fill("misplaced")
    page.get_by_role("button", name="Declare", exact=True).click()
    expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text(f"{leader} leads; ask it at")
    shoot(page, "follower-refused")


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
