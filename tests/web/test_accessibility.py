"""What axe finds on every page, light and dark: labels, roles, contrast, names of buttons."""

from __future__ import annotations

import json
from collections.abc import Callable

import pika
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect
from web.conftest import Shoot, Site, Visitors

PAGES = {
    "overview": "/",
    "queues": "/queues",
    "queue": "/queues/%2F/busy",
    "exchanges": "/exchanges",
    "exchange": "/exchanges/%2F/sales",
    "map": "/exchanges?view=map",
    "connections": "/connections",
    "channels": "/channels",
    "streams": "/streams",
    "stream": "/streams/%2F/prices",
    "marks": "/streams/%2F/prices/marks",
    "pins": "/streams/%2F/prices/pins",
    "facts": "/streams/%2F/prices/facts",
    "takeovers": "/streams/%2F/prices/takeovers",
    "cluster": "/cluster",
    "pipelines": "/pipelines",
    "users": "/users",
    "user": "/users/guest",
    "vhosts": "/vhosts",
    "vhost": "/vhosts/%2F",
    "policies": "/policies",
    "limits": "/limits",
    "definitions": "/definitions",
}


@pytest.fixture(scope="module")
def furnished(site: Site) -> Site:
    """A broker with one of everything."""
    site.api("PUT", "/queues/%2F/busy", {"arguments": {"x-max-length": 1000}})
    site.api("PUT", "/exchanges/%2F/sales", {"type": "topic"})
    site.api("POST", "/bindings/%2F/e/sales/q/busy", {"routing_key": "order.#"})
    site.api(
        "PUT",
        "/streams/%2F/prices",
        {"arguments": {"x-stream-key": "routing-key", "x-stream-history": 60000}},
    )
    site.api("POST", "/bindings/%2F/e/sales/q/prices", {"routing_key": "#"})
    site.api(
        "PUT",
        "/policies/%2F/short",
        {"pattern": "^busy$", "apply-to": "queues", "definition": {"max-length": 10}},
    )
    site.api("PUT", "/vhost-limits/%2F/max-connections", {"value": 100})
    connection = site.connect("shop")
    channel = connection.channel()
    channel.basic_consume("busy", lambda *_: None)
    for number in range(5):
        body = json.dumps({"number": number})
        channel.basic_publish("sales", f"order.{number}", body, pika.BasicProperties(delivery_mode=2))
    connection.process_data_events(0)
    site.api("POST", "/streams/%2F/prices/pins", {"name": "nightly", "lease_ms": 60000})
    site.held = connection  # type: ignore[attr-defined]
    return site


def problems(page: Page, rules: list[str] | None = None) -> list[str]:
    options: dict[str, object] = {"resultTypes": ["violations"]}
    if rules is not None:
        options["runOnly"] = rules
    found = Axe().run(page, options=options)
    return [
        f"{one['id']}: {one['help']}: {[node['html'][:160] for node in one['nodes'][:4]]}"
        for one in found.response["violations"]
    ]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_no_page_has_a_problem_that_axe_can_find(
    furnished: Site, visitors: Visitors, shoot: Shoot, dark: bool
) -> None:
    # axe is put into the page from outside, which the page forbids everybody else.
    page = visitors.enter(furnished, dark=dark, bypass_csp=True)
    found: dict[str, list[str]] = {}
    for name, address in PAGES.items():
        page.goto(furnished.at(address))
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        expect(page.locator(".skeleton")).to_have_count(0)
        shoot(page, f"{name}-{'dark' if dark else 'light'}")
        # Only colours differ in the dark.
        if some := problems(page, ["color-contrast"] if dark else None):
            found[name] = some
    assert not found, "\n".join(f"{name}: {line}" for name, some in found.items() for line in some)


@pytest.mark.parametrize(
    "open_",
    [
        lambda page: page.get_by_role("button", name="Declare a queue").first.click(),
        lambda page: page.keyboard.press("?"),
    ],
    ids=["form", "help"],
)
def test_no_dialog_has_a_problem_that_axe_can_find(
    furnished: Site, visitors: Visitors, open_: Callable[[Page], None]
) -> None:
    page = visitors.enter(furnished, bypass_csp=True)
    page.goto(furnished.at("/queues"))
    expect(page.locator(".skeleton")).to_have_count(0)
    open_(page)
    expect(page.get_by_role("dialog")).to_be_visible()
    assert not problems(page)


def test_the_login_page_has_no_problem_that_axe_can_find(furnished: Site, visitors: Visitors) -> None:
    visitors.expected = ["401"]
    page = visitors.open(bypass_csp=True)
    page.goto(furnished.url)
    expect(page.get_by_label("User")).to_be_visible()
    assert not problems(page)
