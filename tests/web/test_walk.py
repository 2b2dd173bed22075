"""The page as people use it: in a real Chromium, against a real broker."""

from __future__ import annotations

import json
import re
import time

import pika
import pytest
from playwright.sync_api import Page, expect
from web.conftest import Shoot, Site, Visitors

HOSTILE = [
    "<img src=x onerror=window.owned=1>",
    "<script>window.owned=1</script>",
    "a'\"><svg onload=window.owned=1>",
    "javascript:alert(1)",
    "../../users/guest?x=1#y&z",
    "%2F%00%zz",
    "\u202eevil\u202c",
    "naïve – ключ – 鍵 🦀",
]


def live(page: Page) -> None:
    """Wait until the broker pushes."""
    expect(page.locator(".live")).to_have_text("Live")


# The way in ---------------------------------------------------------------------------------------------------


def test_who_knows_the_password_gets_in_and_out_again(visitors: Visitors, site: Site, shoot: Shoot) -> None:
    visitors.expected = ["401"]
    page = visitors.open()
    page.goto(site.url)
    expect(page.get_by_label("User")).to_be_focused()
    shoot(page, "login")
    page.get_by_label("User").fill("guest")
    page.get_by_label("Password").fill("guest")
    page.keyboard.press("Enter")

    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    cookie = next(one for one in page.context.cookies() if one["name"].startswith("tidemark"))
    assert cookie["httpOnly"] and cookie["sameSite"] == "Strict"
    assert page.evaluate("JSON.stringify({...localStorage, ...sessionStorage})").find("guest") < 0

    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_label("Password")).to_be_visible()
    page.goto(site.at("/queues"))
    page.reload()
    expect(page.get_by_label("Password")).to_be_visible()


def test_a_wrong_password_is_told_in_a_sentence_and_lets_nobody_in(visitors: Visitors, site: Site) -> None:
    visitors.expected = ["401"]
    page = visitors.open()
    page.goto(site.url)
    page.get_by_label("User").fill("guest")
    page.get_by_label("Password").fill("wrong")
    page.get_by_role("button", name="Log in").click()

    expect(page.get_by_role("alert").first).to_contain_text("do not open this broker")
    expect(page.get_by_label("Password")).to_be_focused()
    expect(page.get_by_label("Password")).to_have_value("")


def test_a_user_with_few_rights_sees_few_pages(visitors: Visitors, site: Site) -> None:
    site.api("PUT", "/users/manager", {"password": "manager-1", "tags": "management"})
    site.api("PUT", "/permissions/%2F/manager", {"configure": "", "write": "", "read": ".*"})
    visitors.expected = ["401", "403"]
    page = visitors.enter(site, "manager", "manager-1")

    expect(page.locator(".nav a")).to_contain_text(["Overview", "Queues", "Streams", "Pipelines"])
    expect(page.locator(".nav").get_by_text("Users")).to_have_count(0)
    expect(page.locator(".nav").get_by_text("Definitions")).to_have_count(0)


# Queues ---------------------------------------------------------------------------------------------------------


def test_a_queue_is_declared_published_to_watched_read_and_deleted(
    page: Page, site: Site, shoot: Shoot
) -> None:
    page.goto(site.at("/queues"))
    page.get_by_role("button", name="Declare a queue").first.click()
    page.get_by_role("textbox", name="Name", exact=True).fill("orders")
    page.get_by_role("button", name="Message TTL").click()
    page.get_by_label("Value", exact=True).fill("60000")
    page.get_by_role("button", name="Declare", exact=True).click()

    expect(page.get_by_role("heading", name="orders", level=1)).to_be_visible()
    assert site.api("GET", "/queues/%2F/orders").json()["arguments"] == {"x-message-ttl": 60000}

    page.get_by_role("button", name="Publish").click()
    page.get_by_label("Payload", exact=True).fill('{"order": 12345678901234567890, "paid": true}')
    page.get_by_role("dialog").get_by_role("button", name="Publish").click()
    expect(page.get_by_text("Published.")).to_be_visible()

    page.get_by_role("button", name="Get messages").click()
    page.get_by_role("button", name="Get", exact=True).click()
    # Numbers keep all their digits.
    expect(page.locator(".value.json")).to_contain_text('"order": 12345678901234567890')
    shoot(page, "queue-get")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)

    page.get_by_role("button", name="Delete").click()
    expect(page.get_by_role("dialog").get_by_role("button", name="Cancel")).to_be_focused()
    page.keyboard.press("Escape")
    assert site.api("GET", "/queues/%2F/orders").json()["messages"] == 1

    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_role("heading", name="Queues", level=1)).to_be_visible()
    assert "orders" not in [queue["name"] for queue in site.api("GET", "/queues").json()]


def test_counters_move_without_a_reload(page: Page, site: Site, shoot: Shoot) -> None:
    site.api("PUT", "/queues/%2F/moving", {})
    page.goto(site.at("/queues/%2F/moving"))
    live(page)
    messages = page.locator("[data-fact=messages]")
    expect(messages).to_have_text("0")
    page.evaluate("window.here = true")

    connection = site.connect("publisher")
    channel = connection.channel()
    for sent in (3, 10):
        for _ in range(sent):
            channel.basic_publish("", "moving", b"x", pika.BasicProperties(delivery_mode=2))
        connection.process_data_events(0)
        expect(messages).to_have_text({3: "3", 10: "13"}[sent])
    expect(page.locator(".chart").first).to_have_attribute("aria-label", re.compile(r"Ready 13"))
    assert page.evaluate("window.here"), "the page was loaded anew"
    shoot(page, "queue-live")

    page.goto(site.at("/connections"))
    expect(page.get_by_role("cell", name="publisher", exact=True)).to_be_visible()
    page.locator("td.name-cell a").first.click()
    page.get_by_role("button", name="Close", exact=True).click()
    page.get_by_role("button", name="Close it").click()
    expect(page.get_by_text("Closed.")).to_be_visible()
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker):
        connection.process_data_events(10)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_shown_as_text_and_leads_to_its_page(
    visitors: Visitors, site: Site, name: str
) -> None:
    connection = site.connect()
    connection.channel().queue_declare(name, durable=True)
    connection.close()
    page = visitors.enter(site)
    page.goto(site.at("/queues"))
    shown = name.replace("\u202e", "\\u202e").replace("\u202c", "\\u202c")
    page.locator("td.name-cell a", has_text=shown).first.click()

    expect(page.get_by_role("heading", level=1)).to_have_text(shown)
    expect(page.locator("[data-fact=messages]")).to_have_text("0")
    page.get_by_role("button", name="Purge").click()
    expect(page.get_by_role("dialog")).to_contain_text(shown)
    page.get_by_role("dialog").get_by_role("button", name="Purge").click()
    expect(page.get_by_text("The queue is empty.")).to_be_visible()
    assert page.evaluate("window.owned === undefined")
    assert page.locator("#root script, #root img").count() == 0


def test_exchanges_are_declared_bound_and_drawn(page: Page, site: Site, shoot: Shoot) -> None:
    for queue in ("billing", "shipping"):
        site.api("PUT", f"/queues/%2F/{queue}", {})
    page.goto(site.at("/exchanges"))
    page.get_by_role("button", name="Declare an exchange").click()
    page.get_by_role("textbox", name="Name", exact=True).fill("sales")
    page.get_by_label("Type").select_option("topic")
    page.get_by_role("button", name="Declare", exact=True).click()
    expect(page.get_by_role("heading", name="sales", level=1)).to_be_visible()

    for queue in ("billing", "shipping"):
        page.get_by_role("button", name="Bind", exact=True).click()
        page.get_by_label("Its name").fill(queue)
        page.get_by_label("Routing key").fill(f"order.*.{queue}")
        page.get_by_role("dialog").get_by_role("button", name="Bind").click()
        expect(page.get_by_role("dialog")).to_have_count(0)
    picture = page.locator("svg.picture")
    expect(picture.locator(".box")).to_have_count(3)
    expect(picture.locator(".edge")).to_have_count(2)
    expect(picture.locator(".edge-label")).to_contain_text(["order.*.b"])
    shoot(page, "exchange")

    page.get_by_role("row", name="shipping").get_by_role("button", name="Unbind").click()
    page.get_by_role("dialog").get_by_role("button", name="Unbind").click()
    expect(picture.locator(".box")).to_have_count(2)
    page.get_by_role("link", name="billing", exact=False).first.click()
    expect(page.get_by_role("heading", name="billing", level=1)).to_be_visible()


def test_what_the_broker_refuses_is_told_in_its_own_words(page: Page, site: Site, visitors: Visitors) -> None:
    visitors.expected = ["400"]
    site.api("PUT", "/queues/%2F/plain", {"durable": True})
    page.goto(site.at("/queues"))
    page.get_by_role("button", name="Declare a queue").first.click()
    page.get_by_role("textbox", name="Name", exact=True).fill("plain")
    page.get_by_label("Durable").uncheck()
    page.get_by_role("button", name="Declare", exact=True).click()

    expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("durable")
    expect(page.get_by_role("textbox", name="Name", exact=True)).to_have_value("plain")


# Streams --------------------------------------------------------------------------------------------------------


def test_a_stream_is_browsed_by_key_and_at_any_moment(page: Page, site: Site, shoot: Shoot) -> None:
    page.goto(site.at("/streams"))
    page.get_by_role("button", name="Make a stream").first.click()
    page.get_by_role("textbox", name="Name", exact=True).fill("prices")
    page.get_by_label("Keep replaced versions").fill("3600")
    page.get_by_role("button", name="Make it").click()
    expect(page.get_by_role("heading", name="prices", level=1)).to_be_visible()

    connection = site.connect()
    channel = connection.channel()
    channel.confirm_delivery()
    channel.exchange_declare("market", "topic", durable=True)
    channel.queue_bind("prices", "market", "#")
    for price in range(1, 6):
        for symbol in ("acme", "globex"):
            channel.basic_publish(
                "market", symbol, json.dumps({"price": price}), pika.BasicProperties(delivery_mode=2)
            )
    connection.close()

    rows = page.get_by_role("table", name="Messages").locator("tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text('{"price": 5}')
    shoot(page, "stream")

    # One step on the slider shows the stream as it was then.
    slider = page.get_by_role("slider", name="As of which sequence")
    before = int(slider.input_value())
    slider.focus()
    for _ in range(4):
        page.keyboard.press("ArrowLeft")
    expect(page.locator(".slider-when")).to_contain_text("As it was at sequence")
    expect(rows.first).to_contain_text('{"price": 3}')
    assert int(slider.input_value()) == before - 4
    shoot(page, "stream-past")
    page.reload()
    expect(rows.first).to_contain_text('{"price": 3}')
    page.get_by_role("button", name="Now", exact=True).click()
    expect(rows.first).to_contain_text('{"price": 5}')

    # The past of one key.
    page.get_by_role("button", name="acme", exact=True).click()
    versions = page.get_by_role("dialog").locator("ol.timeline > li")
    expect(versions).to_have_count(5)
    expect(versions.first).to_contain_text('"price": 5')
    shoot(page, "stream-key")
    page.keyboard.press("Escape")

    # Only some keys.
    page.get_by_role("searchbox", name="Key").fill("glo")
    page.get_by_label("How the key is meant").select_option("prefix")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("globex")


def test_pins_and_marks_are_made_shown_and_undone(page: Page, site: Site) -> None:
    site.api("PUT", "/streams/%2F/pinned", {"arguments": {"x-stream-key": "routing-key"}})
    page.goto(site.at("/streams/%2F/pinned/pins"))
    page.get_by_role("button", name="Pin now").first.click()
    page.get_by_role("textbox", name="Name", exact=True).fill("nightly")
    page.get_by_role("dialog").get_by_role("button", name="Pin", exact=True).click()

    expect(page.get_by_role("table", name="Pins")).to_contain_text("nightly")
    page.get_by_role("button", name="Release").click()
    page.get_by_role("dialog").get_by_role("button", name="Release").click()
    expect(page.get_by_text("Nothing is pinned")).to_be_visible()

    page.get_by_role("link", name="Marks", exact=True).click()
    expect(page.get_by_text("No consumer has a mark here")).to_be_visible()


def test_pipelines_that_report_are_drawn_with_what_went_wrong(page: Page, site: Site, shoot: Shoot) -> None:
    page.goto(site.at("/pipelines"))
    expect(page.get_by_text("Nothing runs yet")).to_be_visible()
    live(page)

    site.api("PUT", "/streams/%2F/tidemark.pipelines", {"arguments": {"x-stream-key": "routing-key"}})
    connection = site.connect()
    channel = connection.channel()
    channel.exchange_declare("reports", "topic", durable=True)
    channel.queue_bind("tidemark.pipelines", "reports", "#")
    report = {
        "name": "orders-to-warehouse",
        "host": "worker-1",
        "pid": 4711,
        "state": "running",
        "began_ms": int(time.time() * 1000) - 60_000,
        "sources": [{"name": "orders", "stream": "orders", "url": "amqp://localhost"}],
        "steps": [{"name": "paid only", "kind": "filter", "reads": ["orders"]}],
        "sinks": [
            {
                "name": "warehouse",
                "kind": "postgres",
                "mode": "upsert",
                "reads": "paid only",
                "state": "running",
                "rows_per_s": 1250.0,
                "lag_rows": 37,
                "rows": 90_000,
                "sequence": 123_456,
            },
            {
                "name": "search",
                "kind": "tantivy",
                "mode": "upsert",
                "reads": "paid only",
                "state": "failed",
                "error": "'total' is no number",
                "offending": {"key": "o-17", "sequence": 99, "value": '{"total": "<b>many</b>"}'},
            },
        ],
    }
    channel.basic_publish(
        "reports", "orders-to-warehouse", json.dumps(report), pika.BasicProperties(delivery_mode=2)
    )
    connection.close()

    expect(page.get_by_role("heading", name="orders-to-warehouse")).to_be_visible()
    picture = page.locator("svg.picture")
    expect(picture.locator(".box")).to_have_count(4)
    expect(picture.locator(".edge")).to_have_count(3)
    expect(picture.locator(".box.bad")).to_contain_text("search")
    expect(page.locator(".problem")).to_contain_text("'total' is no number")
    expect(page.locator(".problem .value")).to_contain_text("<b>many</b>")
    shoot(page, "pipelines")


# Administration -------------------------------------------------------------------------------------------------


def test_users_permissions_policies_and_limits_are_made_on_their_pages(page: Page, site: Site) -> None:
    page.goto(site.at("/users"))
    page.get_by_role("button", name="Add a user").click()
    page.get_by_role("textbox", name="Name", exact=True).fill("ada")
    page.get_by_label("Password").fill("correct-horse")
    page.get_by_label(re.compile("^monitoring")).check()
    page.get_by_role("dialog").get_by_role("button", name="Add", exact=True).click()
    expect(page.get_by_role("heading", name="ada", level=1)).to_be_visible()
    page.get_by_role("button", name="Set").first.click()
    page.get_by_label("May read from").fill("^orders")
    page.get_by_role("dialog").get_by_role("button", name="Save").click()
    expect(page.get_by_role("table", name="Permissions")).to_contain_text("^orders")
    assert site.api("GET", "/users/ada").json()["tags"] == ["monitoring"]
    assert site.api("GET", "/permissions/%2F/ada").json()["read"] == "^orders"

    site.api("PUT", "/queues/%2F/governed", {})
    page.goto(site.at("/policies"))
    page.get_by_role("button", name="Add", exact=True).first.click()
    page.get_by_role("textbox", name="Name", exact=True).fill("short")
    page.get_by_label("Pattern").fill("^governed$")
    page.get_by_label("Applies to").select_option("queues")
    page.get_by_role("button", name="Max length", exact=True).click()
    page.get_by_label("Value", exact=True).fill("10")
    page.get_by_role("dialog").get_by_role("button", name="Add", exact=True).last.click()
    expect(page.get_by_role("table", name="Policies", exact=True)).to_contain_text("max-length = 10")
    page.goto(site.at("/queues/%2F/governed"))
    expect(page.get_by_role("region", name="Policy in force")).to_contain_text("short")

    page.goto(site.at("/limits"))
    page.get_by_role("button", name="Set a limit").first.click()
    page.get_by_label("At most").fill("7")
    page.get_by_role("dialog").get_by_role("button", name="Save").click()
    expect(page.get_by_role("table", name="Virtual hosts")).to_contain_text("7 connections")
    page.get_by_role("button", name="Clear").click()
    page.get_by_role("dialog").get_by_role("button", name="Clear").click()
    expect(page.get_by_text("Cleared.")).to_be_visible()


def test_definitions_go_out_as_a_file_and_come_back_in(
    page: Page, site: Site, tmp_path_factory: pytest.TempPathFactory
) -> None:
    site.api("PUT", "/queues/%2F/travelling", {})
    page.goto(site.at("/definitions"))
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Download").click()
    file = tmp_path_factory.mktemp("definitions") / "out.json"
    waiting.value.save_as(file)
    assert "travelling" in [queue["name"] for queue in json.loads(file.read_text())["queues"]]

    site.api("DELETE", "/queues/%2F/travelling")
    page.get_by_label("File").set_input_files(file)
    page.get_by_role("button", name="Import").click()
    page.get_by_role("dialog").get_by_role("button", name="Import").click()
    expect(page.get_by_text("Imported.")).to_be_visible()
    assert site.api("GET", "/queues/%2F/travelling").json()["durable"]


# Keyboard, theme, connection ------------------------------------------------------------------------------------


def test_everything_is_reached_with_the_keyboard_alone(page: Page, site: Site) -> None:
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#content")).to_be_focused()

    page.keyboard.press("?")
    help_ = page.get_by_role("dialog", name="Shortcuts")
    expect(help_).to_be_visible()
    for _ in range(12):
        page.keyboard.press("Tab")
        assert page.evaluate("document.querySelector('dialog').contains(document.activeElement)")
    page.keyboard.press("Escape")
    expect(help_).to_have_count(0)

    page.keyboard.press("g")
    page.keyboard.press("q")
    expect(page.get_by_role("heading", name="Queues", level=1)).to_be_focused()
    page.keyboard.press("n")
    expect(page.get_by_role("dialog", name="Declare a queue")).to_be_visible()
    page.keyboard.press("Tab")  # from the virtual host to the name
    expect(page.get_by_role("textbox", name="Name", exact=True)).to_be_focused()
    page.keyboard.type("by-keyboard")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="by-keyboard", level=1)).to_be_visible()

    page.keyboard.press("g")
    page.keyboard.press("q")
    expect(page.get_by_role("heading", name="Queues", level=1)).to_be_visible()
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox")).to_be_focused()
    page.keyboard.type("by-key")
    expect(page.locator("td.name-cell a")).to_have_count(1)
    for _ in range(12):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "by-keyboard":
            break
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="by-keyboard", level=1)).to_be_visible()


LONG = "a-rather-long-queue-name.that.goes.on.and.on.for.ever.and.ever"
ADDRESSES = [
    "/", "/queues", f"/queues/%2F/{LONG}", "/exchanges", "/exchanges?view=map", "/exchanges/%2F/amq.topic", "/connections",
    "/channels", "/streams", "/streams/%2F/narrow", "/streams/%2F/narrow/marks", "/streams/%2F/narrow/pins", "/cluster",
    "/pipelines", "/users", "/users/guest", "/vhosts", "/vhosts/%2F", "/policies", "/limits", "/definitions",
]  # fmt: skip


def test_no_page_is_wider_than_a_phone(visitors: Visitors, site: Site, shoot: Shoot) -> None:
    site.api("PUT", f"/queues/%2F/{LONG}", {})
    site.api(
        "POST", f"/bindings/%2F/e/amq.topic/q/{LONG}", {"routing_key": "a.rather.long.routing.key.as.well"}
    )
    site.api("PUT", "/streams/%2F/narrow", {"arguments": {"x-stream-key": "routing-key"}})
    page = visitors.enter(site, phone=True)
    widths = {}
    for address in ADDRESSES:
        page.goto(site.at(address))
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        expect(page.locator(".skeleton")).to_have_count(0)
        widths[address] = page.evaluate("document.documentElement.scrollWidth")
        shoot(page, f"phone{address.replace('%2F', '')}")
    assert {address: width for address, width in widths.items() if width > 360} == {}

    page.get_by_role("button", name="Menu").tap()
    page.locator(".nav").get_by_role("link", name="Streams").tap()
    expect(page.get_by_role("heading", name="Streams", level=1)).to_be_visible()
    expect(page.locator(".nav")).to_be_hidden()


def test_dark_and_light_follow_the_system_until_somebody_chooses(
    visitors: Visitors, site: Site, shoot: Shoot
) -> None:
    page = visitors.enter(site, dark=True)

    def ground() -> int:
        colour = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
        return sum(int(part) for part in re.findall(r"\d+", colour)[:3])

    whole = page.locator("html")
    assert ground() < 150
    shoot(page, "overview-dark")
    page.emulate_media(color_scheme="light")
    expect(whole).to_have_attribute("data-theme", "light")
    assert ground() > 600
    page.keyboard.press("t")  # from the system to light
    page.keyboard.press("t")  # to dark, whatever the system says
    expect(whole).to_have_attribute("data-theme", "dark")
    page.reload()
    expect(whole).to_have_attribute("data-theme", "dark")
    assert ground() < 150


def test_a_broker_that_goes_away_is_missed_and_one_that_comes_back_is_found(
    visitors: Visitors, start_broker: object, tmp_path_factory: pytest.TempPathFactory
) -> None:
    process = start_broker()  # type: ignore[operator]
    own = Site(process)
    visitors.expected = ["ERR_", "401", "Failed to load"]
    page = visitors.enter(own)
    live(page)
    process.kill()
    expect(page.locator(".live")).to_have_text("Not connected")
    expect(page.locator(".banners")).to_contain_text("What you see may be old")

    process.start()
    # The login may have ended with the process; then the page says so and asks for it.
    expect(page.locator(".live.good, .login-card").first).to_be_visible()
