"""The page without a mouse: everything is reached by Tab, seen when it is, used by Enter and Space, and not lost when the broker pushes."""

from __future__ import annotations

import json

import pika
import pytest
from playwright.sync_api import Locator, Page, expect
from web.conftest import Site

TABS_MAX = 250

# What can be used and is shown, each by what it says.
STOPS = """() => {
  const shown = (one) => one.checkVisibility({visibilityProperty: true}) && !one.disabled && one.tabIndex >= 0;
  const stops = [...document.querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex='0']")].filter(shown);
  return stops.map(window.sign);
}"""
SIGN = """() => {
  window.sign = (one) => [one.tagName.toLowerCase(), one.getAttribute("aria-label") ?? one.getAttribute("href") ?? one.name
    ?? "", one.tagName === "SELECT" ? "" : one.textContent.replace(/[\\d.,]+/g, "#").slice(0, 60)].join(" | ");
}"""
HERE = """() => {
  const one = document.activeElement;
  const look = getComputedStyle(one);
  return [window.sign(one), look.outlineStyle !== "none" && parseFloat(look.outlineWidth) > 0, one === document.body];
}"""


@pytest.fixture(scope="module")
def furnished(site: Site) -> Site:
    site.api("PUT", "/queues/%2F/busy", {})
    site.api("PUT", "/exchanges/%2F/sales", {"type": "topic"})
    site.api("POST", "/bindings/%2F/e/sales/q/busy", {"routing_key": "order.#"})
    arguments = {"x-stream-key": "routing-key", "x-stream-history": 3_600_000}
    site.api("PUT", "/streams/%2F/prices", {"arguments": arguments})
    site.api("POST", "/bindings/%2F/e/sales/q/prices", {"routing_key": "#"})
    for number in range(5):
        publish(site, f"order.{number}", number)
    site.api("POST", "/streams/%2F/prices/pins", {"name": "nightly", "lease_ms": 3_600_000})
    site.api("PUT", "/streams/%2F/prices/marks/billing", {"sequence": 1})
    definition = {"pattern": "^busy$", "apply-to": "queues", "definition": {"max-length": 10}}
    site.api("PUT", "/policies/%2F/short", definition)
    site.api("PUT", "/vhost-limits/%2F/max-connections", {"value": 100})
    return site


def publish(site: Site, key: str, number: int) -> None:
    connection = site.connect("shop")
    channel = connection.channel()
    channel.confirm_delivery()
    properties = pika.BasicProperties(delivery_mode=2)
    channel.basic_publish("sales", key, json.dumps({"number": number}), properties)
    connection.close()


def opened(page: Page, site: Site, address: str) -> None:
    page.goto(site.at(address))
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    expect(page.locator(".skeleton")).to_have_count(0)


def reach(page: Page, target: Locator) -> None:
    """Tab on until it has the focus."""
    expect(target).to_be_visible()
    for _ in range(TABS_MAX):
        if target.evaluate("one => one === document.activeElement"):
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"{target} is not reached by Tab")


def use(page: Page, target: Locator) -> None:
    reach(page, target)
    page.keyboard.press("Enter")


def fill_in(page: Page, label: str, text: str) -> None:
    reach(page, page.get_by_role("dialog").get_by_label(label).first)
    page.keyboard.press("Control+a")
    page.keyboard.type(text)


# Reaching -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address",
    [
        "/", "/queues", "/queues/%2F/busy", "/exchanges", "/exchanges?view=map", "/exchanges/%2F/sales", "/connections",
        "/channels", "/streams", "/streams/%2F/prices", "/streams/%2F/prices?since=0", "/streams/%2F/prices/marks",
        "/streams/%2F/prices/pins", "/streams/%2F/prices/facts", "/cluster", "/pipelines", "/users", "/users/guest", "/vhosts",
        "/vhosts/%2F", "/policies", "/limits", "/definitions",
    ],
)  # fmt: skip
def test_whatever_can_be_used_is_reached_by_tab_and_seen_when_it_is(
    page: Page, furnished: Site, address: str
) -> None:
    opened(page, furnished, address)
    page.evaluate(SIGN)
    wanted = set(page.evaluate(STOPS))
    assert len(wanted) > 15

    # Once round, from wherever the focus was: behind the last one it is nowhere, and then at the first.
    found, unseen, rounds = set(), set(), 0
    for _ in range(TABS_MAX):
        page.keyboard.press("Tab")
        sign, outlined, nowhere = page.evaluate(HERE)
        rounds += nowhere
        if rounds == 2:
            break
        if nowhere:
            continue
        found.add(sign)
        if not outlined:
            unseen.add(sign)
    # What has come since is no fault; what was there and is still there must have been met.
    assert (wanted & set(page.evaluate(STOPS))) - found == set()
    assert unseen == set()


def test_what_the_broker_pushes_takes_the_focus_from_nobody(page: Page, furnished: Site) -> None:
    opened(page, furnished, "/streams/%2F/prices")
    marks = page.locator(".counts").get_by_role("link", name="mark")
    keys = page.locator(".counts .count").first
    reach(page, marks)
    before = keys.inner_text()

    publish(furnished, "order.pushed", 1)
    expect(keys).not_to_have_text(before)
    expect(marks).to_be_focused()
    furnished.api("PUT", "/streams/%2F/prices/marks/other", {"sequence": 1})
    expect(marks).to_have_text("2 marks")
    expect(marks).to_be_focused()
    furnished.api("DELETE", "/streams/%2F/prices/marks/other")


# Using ----------------------------------------------------------------------------------------------------------


def test_a_queue_is_filled_looked_into_and_deleted_by_keyboard(page: Page, furnished: Site) -> None:
    furnished.api("PUT", "/queues/%2F/typed", {})
    opened(page, furnished, "/queues/%2F/typed")
    use(page, page.get_by_role("button", name="Publish", exact=True))
    fill_in(page, "Payload", "by hand")
    use(page, page.get_by_role("dialog").get_by_role("button", name="Publish", exact=True))
    expect(page.get_by_role("dialog")).to_have_count(0)
    # The focus is where it was before the dialog.
    expect(page.get_by_role("button", name="Publish", exact=True)).to_be_focused()
    expect(page.locator("[data-fact=messages]")).to_have_text("1")

    use(page, page.get_by_role("button", name="Get messages"))
    use(page, page.get_by_role("dialog").get_by_role("button", name="Get", exact=True))
    expect(page.get_by_role("dialog").locator(".value")).to_have_text("by hand")
    page.keyboard.press("Escape")
    use(page, page.get_by_role("button", name="Lock", exact=True))
    use(page, page.get_by_role("dialog").get_by_role("button", name="Lock", exact=True))
    expect(page.get_by_role("button", name="Unlock")).to_be_visible()
    assert furnished.api("GET", "/queues/%2F/typed").json()["state"] == "locked"
    use(page, page.get_by_role("button", name="Unlock"))
    expect(page.get_by_role("button", name="Lock", exact=True)).to_be_visible()

    use(page, page.get_by_role("button", name="Delete", exact=True))
    use(page, page.get_by_role("dialog").get_by_role("button", name="Delete", exact=True))
    expect(page.get_by_role("heading", name="Queues", level=1)).to_be_focused()
    assert "typed" not in [one["name"] for one in furnished.api("GET", "/queues").json()]


def test_a_binding_is_made_and_undone_by_keyboard(page: Page, furnished: Site) -> None:
    furnished.api("PUT", "/queues/%2F/bound", {})
    opened(page, furnished, "/exchanges/%2F/sales")
    use(page, page.get_by_role("button", name="Bind", exact=True))
    fill_in(page, "Its name", "bound")
    fill_in(page, "Routing key", "by.hand")
    page.keyboard.press("Enter")
    row = page.get_by_role("row", name="by.hand")
    use(page, row.get_by_role("button", name="Unbind"))
    use(page, page.get_by_role("dialog").get_by_role("button", name="Unbind"))
    expect(row).to_have_count(0)
    assert len(furnished.api("GET", "/queues/%2F/bound/bindings").json()) == 1


def test_a_stream_is_compared_pinned_and_its_marks_are_moved_by_keyboard(page: Page, furnished: Site) -> None:
    opened(page, furnished, "/streams/%2F/prices")
    compare = page.get_by_role("button", name="Compare", exact=True)
    use(page, compare)
    changes = page.get_by_role("table", name="Changes")
    expect(changes).to_be_visible()
    since = page.get_by_role("slider", name="Since which sequence")
    reach(page, since)
    before = int(since.input_value())
    page.keyboard.press("ArrowRight")
    expect(page.get_by_label("Since sequence", exact=True)).to_have_value(str(before + 1))
    use(page, changes.get_by_role("button", name="Open what was").first)
    expect(page.get_by_role("dialog")).to_contain_text("After")
    page.keyboard.press("Escape")
    use(page, compare)

    use(page, page.get_by_role("button", name="Pin now"))
    fill_in(page, "Name", "by-hand")
    page.keyboard.press("Enter")
    use(page, page.get_by_role("navigation", name="Views of the stream").get_by_role("link", name="Pins"))
    row = page.get_by_role("table", name="Pins").get_by_role("row", name="by-hand")
    use(page, row.get_by_role("button", name="Release"))
    use(page, page.get_by_role("dialog").get_by_role("button", name="Release"))
    expect(row).to_have_count(0)
    assert [one["name"] for one in furnished.api("GET", "/streams/%2F/prices/pins").json()] == ["nightly"]

    use(page, page.get_by_role("navigation", name="Views of the stream").get_by_role("link", name="Marks"))
    use(page, page.get_by_role("row", name="billing").get_by_role("button", name="Reset"))
    fill_in(page, "Sequence", "3")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_have_count(0)
    [mark] = furnished.api("GET", "/streams/%2F/prices/marks").json()
    assert mark["sequence"] == 3


def test_a_user_is_made_given_rights_and_deleted_by_keyboard(page: Page, furnished: Site) -> None:
    opened(page, furnished, "/users")
    page.keyboard.press("n")
    fill_in(page, "Name", "typist")
    fill_in(page, "Password", "correct-horse")
    reach(page, page.get_by_label("monitoring: sees everything, of all virtual hosts"))
    page.keyboard.press("Space")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="typist", level=1)).to_be_focused()
    use(page, page.get_by_role("button", name="Set").first)
    fill_in(page, "May read from", "^orders")
    page.keyboard.press("Enter")
    expect(page.get_by_role("table", name="Permissions")).to_contain_text("^orders")
    assert furnished.api("GET", "/users/typist").json()["tags"] == ["monitoring"]
    use(page, page.get_by_role("button", name="Delete", exact=True))
    use(page, page.get_by_role("dialog").get_by_role("button", name="Delete", exact=True))
    expect(page.get_by_role("heading", name="Users", level=1)).to_be_focused()
