"""10,000 queues stay usable: pages, search and sort are the broker's work, and the page shows one page of them."""

from __future__ import annotations

import time

import pytest
from playwright.sync_api import Page, expect
from web.conftest import Shoot, Site

QUEUES = 10_000


@pytest.fixture(scope="module")
def crowded(site: Site) -> Site:
    kind = {"vhost": "/", "durable": True, "auto_delete": False, "arguments": {}}
    site.api(
        "POST",
        "/definitions",
        {"queues": [{"name": f"tenant-{number:05}", **kind} for number in range(QUEUES)]},
    )
    message = {"properties": {}, "routing_key": "tenant-07777", "payload": "x", "payload_encoding": "string"}
    site.api("POST", "/exchanges/%2F/amq.default/publish", message)
    assert site.api("GET", "/queues?page=1&page_size=1").json()["total_count"] == QUEUES
    return site


def test_ten_thousand_queues_are_paged_searched_and_sorted(crowded: Site, page: Page, shoot: Shoot) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    began = time.monotonic()
    page.goto(crowded.at("/queues"))
    rows = page.get_by_role("table", name="Queues").locator("tbody tr")
    expect(rows).to_have_count(50)
    assert time.monotonic() - began < 5
    expect(page.locator(".pager-words")).to_contain_text("of 10,000")
    assert all("page_size=50" in url for url in asked if "/api/queues" in url)
    shoot(page, "queues-10000")

    page.get_by_role("button", name="Next page").click()
    expect(rows.first).to_contain_text("tenant-00050")
    page.keyboard.press("]")
    expect(rows.first).to_contain_text("tenant-00100")
    page.reload()
    expect(rows.first).to_contain_text("tenant-00100")

    page.get_by_role("searchbox").fill("tenant-0999")
    expect(rows).to_have_count(10)
    expect(page.locator(".pager-words")).to_contain_text("1–10 of 10 (10,000 in all)")

    page.get_by_role("searchbox").fill("")
    page.get_by_role("button", name="Total").click()
    expect(rows.first).to_contain_text("tenant-07777")
    page.get_by_label("Rows a page").select_option("500")
    expect(rows).to_have_count(500)


def test_a_regular_expression_finds_what_a_word_does_not(crowded: Site, page: Page) -> None:
    page.goto(crowded.at("/queues?name=%5Etenant-0000%5B13%5D%24&regex=1"))
    rows = page.get_by_role("table", name="Queues").locator("tbody tr")
    expect(rows).to_have_count(2)
    expect(page.get_by_label("Regular expression")).to_be_checked()
