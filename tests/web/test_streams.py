"""Streams on the page: two moments compared, consumers sent elsewhere, pins let go, each with what the API says of it then."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from helpers.amqp import eventually
from playwright.sync_api import Page, expect
from web.conftest import Shoot, Site, Visitors

import tidemark.client
from tidemark.client import Client


@pytest.fixture(scope="module")
def db(site: Site) -> Iterator[Client]:
    address = site.process.address
    with tidemark.client.connect(f"tidemark://guest:guest@{address.host}:{address.port}/") as client:
        yield client


def compared(page: Page) -> dict[str, str]:
    """What the table of changes says of each key."""
    rows = page.get_by_role("table", name="Changes").locator("tbody tr")
    return {row.locator(".name-cell").inner_text(): row.locator(".badge").inner_text() for row in rows.all()}


# Two moments compared -------------------------------------------------------------------------------------------


def test_two_moments_are_compared_beside_the_slider(page: Page, site: Site, db: Client, shoot: Shoot) -> None:
    stream = db.stream("compared", create=True, history=3600)
    stream.put_many([(b"same", b"0"), (b"raised", b"10"), (b"sold", b"0")])
    start = stream.put(b"other", b"0").sequence
    stream.put(b"raised", b"11")
    stream.delete(b"sold")
    middle = stream.put(b"new", b"1").sequence
    stream.put(b"later", b"1")

    page.goto(site.at("/streams/%2F/compared"))
    page.get_by_role("button", name="Compare", exact=True).click()
    page.get_by_label("Since sequence", exact=True).fill(str(start))
    page.keyboard.press("Enter")
    changes = page.get_by_role("table", name="Changes").locator("tbody tr")
    expect(changes).to_have_count(4)
    assert compared(page) == {"raised": "changed", "sold": "deleted", "new": "added", "later": "added"}
    raised = changes.filter(has_text="raised")
    expect(raised.locator(".value-cell").first).to_have_text("10")
    expect(raised.locator(".value-cell").last).to_have_text("11")
    expect(page.get_by_role("region", name="What changed")).to_contain_text("2 added")
    shoot(page, "stream-compared")

    # The later moment is the slider's; what is shown is in the address.
    page.get_by_label("As of sequence").fill(str(middle))
    page.keyboard.press("Enter")
    expect(changes).to_have_count(3)
    page.reload()
    expect(changes).to_have_count(3)
    raised.get_by_role("button", name="Open what was changed").click()
    expect(page.get_by_role("dialog").locator("section")).to_have_count(2)
    page.keyboard.press("Escape")

    # The earlier one goes along when the later one is moved in front of it.
    page.get_by_label("As of sequence").fill(str(start - 1))
    page.keyboard.press("Enter")
    expect(page.get_by_text("Nothing changed")).to_be_visible()
    page.get_by_role("button", name="Compare", exact=True).click()
    expect(page.get_by_role("table", name="Messages")).to_be_visible()


def test_a_long_comparison_is_turned_page_by_page_between_the_same_moments(
    page: Page, site: Site, db: Client
) -> None:
    stream = db.stream("long", create=True, history=3600)
    start = stream.put(b"first", b"0").sequence
    stream.put_many([(b"k%03d" % n, b"1") for n in range(120)])
    page.goto(site.at(f"/streams/%2F/long?since={start}"))
    changes = page.get_by_role("table", name="Changes").locator("tbody tr")
    later = page.get_by_role("button", name="Later")
    expect(changes).to_have_count(50)
    expect(page.get_by_role("region", name="What changed")).to_contain_text("on this page")

    later.click()
    expect(changes.first).to_contain_text("k050")
    stream.put(b"k119", b"2")
    later.click()
    expect(changes).to_have_count(20)
    expect(changes.last).to_contain_text("k119")
    expect(later).to_be_disabled()
    page.get_by_role("button", name="Earlier").click()
    expect(changes.first).to_contain_text("k050")


def test_a_moment_that_is_gone_is_told_in_words_with_the_oldest_that_is_kept(
    visitors: Visitors, site: Site, db: Client, shoot: Shoot
) -> None:
    stream = db.stream("forgetful", create=True)
    start = stream.put(b"k", b"0").sequence
    stream.put(b"k", b"1")
    pinned = site.api("POST", "/streams/%2F/forgetful/pins", {"name": "kept"}).json()["sequence"]
    stream.put(b"k", b"2")
    oldest = site.api("GET", "/streams/%2F/forgetful").json()["oldest_snapshot"]
    visitors.expected = ["400"]
    page = visitors.enter(site)

    # The first side: what changed is known, what it was before is not.
    page.goto(site.at(f"/streams/%2F/forgetful?since={start}"))
    told = page.get_by_role("region", name="What changed")
    expect(told).to_contain_text(f"How the stream was at sequence {start} is not kept any more")
    expect(told).to_contain_text("1 put")
    shoot(page, "stream-compared-gone")
    told.get_by_role("button", name=f"Compare with {pinned}, which is kept").click()
    expect(told).to_contain_text("1 changed")
    expect(told).not_to_contain_text("is not kept any more")

    # The second side: there is nothing to compare with.
    page.get_by_label("As of sequence").fill(str(start))
    page.keyboard.press("Enter")
    expect(told.get_by_role("alert")).to_contain_text(f"the oldest exact snapshot is at {oldest}")


# Marks and pins ------------------------------------------------------------------------------------------------


def mark(site: Site, stream: str) -> dict[str, int]:
    [found] = site.api("GET", f"/streams/%2F/{stream}/marks").json()
    return found  # type: ignore[no-any-return]


def test_a_consumer_is_sent_elsewhere_and_forgotten_on_the_page(page: Page, site: Site, db: Client) -> None:
    stream = db.stream("followed", create=True)
    first = stream.put(b"a", b"0").sequence
    stream.put_many([(b"k%d" % n, b"0") for n in range(10)])
    site.api("PUT", "/streams/%2F/followed/marks/billing", {"sequence": first})
    page.goto(site.at("/streams/%2F/followed/marks"))
    row = page.get_by_role("table", name="Marks").get_by_role("row", name="billing")
    expect(row).to_contain_text("10")

    def reset(sequence: int) -> None:
        row.get_by_role("button", name="Reset").click()
        page.get_by_role("spinbutton", name="Sequence").fill(str(sequence))
        page.get_by_role("dialog").get_by_role("button", name="Reset").click()
        expect(page.get_by_role("dialog")).to_have_count(0)

    # Forward to the end, then back to the beginning.
    end = site.api("GET", "/streams/%2F/followed").json()["boundary"]
    reset(end)
    expect(row).to_contain_text("at the end")
    assert (mark(site, "followed")["sequence"], mark(site, "followed")["keys_behind"]) == (end, 0)
    reset(0)
    expect(row).to_contain_text("behind")
    assert (mark(site, "followed")["sequence"], mark(site, "followed")["keys_behind"]) == (0, 11)

    row.get_by_role("button", name="Forget").click()
    page.get_by_role("dialog").get_by_role("button", name="Forget").click()
    expect(page.get_by_text("No consumer has a mark here")).to_be_visible()
    assert site.api("GET", "/streams/%2F/followed/marks").json() == []


def test_a_pin_that_is_released_on_the_page_gives_back_what_it_kept(
    visitors: Visitors, site: Site, db: Client
) -> None:
    stream = db.stream("costly", create=True)
    stream.put_many([(b"k%d" % n, b"x" * 1000) for n in range(20)])
    page = visitors.enter(site)
    page.goto(site.at("/streams/%2F/costly/pins"))
    page.get_by_role("button", name="Pin now").first.click()
    page.get_by_role("textbox", name="Name", exact=True).fill("audit")
    page.get_by_label("Lease (minutes)").fill("5")
    page.get_by_role("dialog").get_by_role("button", name="Pin", exact=True).click()
    row = page.get_by_role("table", name="Pins").get_by_role("row", name="audit")
    expect(row).to_be_visible()
    stream.put_many([(b"k%d" % n, b"y") for n in range(20)])
    expect(row).to_contain_text("19.5 KiB")
    [pin] = site.api("GET", "/streams/%2F/costly/pins").json()
    assert (pin["messages_kept"], pin["bytes_kept"]) == (20, 20_000)

    row.get_by_role("link", name="Compare with now").click()
    expect(page.get_by_role("region", name="What changed")).to_contain_text("20 changed")
    page.get_by_role("link", name="Pins and snapshots").click()
    row.get_by_role("button", name="Release").click()
    page.get_by_role("dialog").get_by_role("button", name="Release").click()

    expect(page.get_by_text("Nothing is pinned")).to_be_visible()
    assert site.api("GET", "/streams/%2F/costly/pins").json() == []
    assert eventually(lambda: site.api("GET", "/streams/%2F/costly").json()["held"] == 0, 90)
