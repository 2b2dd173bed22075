"""A real broker and a real Chromium for the tests of the management page.

Brokers are shared by the tests of a module, the browser by all. Each test has a browser context of its own, so logins
and choices do not leak. A test fails if the page wrote an error to the console: a blocked script, an exception, a file
that is not there. Pictures of all pages, and of whatever failed, are kept in the folder that TIDEMARK_ARTEFACTS names.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pika
import pytest
from helpers.broker import BrokerProcess
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, expect, sync_playwright

PATIENCE_MS = 10_000
DESKTOP = {"width": 1280, "height": 800}
PHONE = {"width": 360, "height": 740}
Shoot = Callable[[Page, str], None]

expect.set_options(timeout=PATIENCE_MS)


class Site:
    """A broker, and the shortest way to what a test needs of it."""

    def __init__(self, process: BrokerProcess) -> None:
        self.process = process
        self.url = f"http://{process.admin.host}:{process.admin.port}"
        self.client = httpx.Client(timeout=30)

    def api(self, method: str, path: str, body: object = None) -> httpx.Response:
        answer = self.client.request(method, f"{self.url}/api{path}", json=body, auth=("guest", "guest"))
        assert answer.status_code < 300, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer

    def connect(self, name: str = "test") -> pika.BlockingConnection:
        address = self.process.address
        return pika.BlockingConnection(
            pika.ConnectionParameters(address.host, address.port, client_properties={"connection_name": name})
        )

    def at(self, address: str) -> str:
        return f"{self.url}/#{address}"


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    program = shutil.which("chromium")
    if program is None:
        assert not os.environ.get("CI"), "chromium is missing: apt-get install chromium"
        pytest.skip("Chromium is not installed: apt-get install chromium")
    # Chromium refuses its sandbox to root, which is who runs tests in a container.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=program, args=arguments)
        yield running
        running.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A broker that the tests of a module share."""
    process = BrokerProcess(tmp_path_factory.mktemp("web") / "data").start()
    yield Site(process)
    process.stop()


@pytest.fixture
def shoot(request: pytest.FixtureRequest) -> Shoot:
    """Keeps a picture, if there is a folder for pictures."""

    def keep(page: Page, name: str) -> None:
        folder = os.environ.get("TIDEMARK_ARTEFACTS")
        if folder:
            place = Path(folder) / "web"
            place.mkdir(parents=True, exist_ok=True)
            page.screenshot(
                path=place / f"{re.sub(r'[^a-z0-9-]+', '-', name.lower())[:80]}.png", full_page=True
            )

    return keep


_cookies: dict[tuple[str, str], Any] = {}
"""Who has logged in where: hashing a password takes longer than most of a test."""


class Visitors:
    """Opens pages in contexts of their own and hears what they complain about."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._contexts: list[BrowserContext] = []
        self.pages: list[Page] = []
        self.complaints: list[str] = []
        self.expected: list[str] = []
        """Patterns of complaints that the test brings about itself."""

    def open(
        self, *, phone: bool = False, dark: bool = False, bypass_csp: bool = False, reduced: bool = True
    ) -> Page:
        context = self._browser.new_context(
            viewport=PHONE if phone else DESKTOP,  # type: ignore[arg-type]
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce" if reduced else "no-preference",
            has_touch=phone,
            bypass_csp=bypass_csp,
            accept_downloads=True,
        )
        context.set_default_timeout(PATIENCE_MS)
        self._contexts.append(context)
        page = context.new_page()
        page.on("console", self._hear)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.pages.append(page)
        return page

    def enter(self, site: Site, user: str = "guest", password: str = "guest", **options: bool) -> Page:
        """A page that is logged in, at the overview."""
        page = self.open(**options)
        known = _cookies.get((site.url, user))
        if known is None:
            body = {"username": user, "password": password}
            answer = page.request.post(f"{site.url}/api/login", data=body, headers={"X-Tidemark": "1"})
            assert answer.ok, answer.text()
            _cookies[site.url, user] = page.context.cookies()
        else:
            page.context.add_cookies(known)
        page.goto(site.at("/"))
        page.locator("nav.nav").wait_for(state="attached")
        return page

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.complaints.append(f"{message.text} ({message.location.get('url', '')})")

    def unexpected(self) -> list[str]:
        return [one for one in self.complaints if not any(re.search(known, one) for known in self.expected)]

    def close(self) -> None:
        for context in self._contexts:
            context.close()


@pytest.fixture
def visitors(request: pytest.FixtureRequest, browser: Browser, shoot: Shoot) -> Iterator[Visitors]:
    failed = request.session.testsfailed
    found = Visitors(browser)
    yield found
    if request.session.testsfailed > failed:
        for number, page in enumerate(found.pages):
            shoot(page, f"failed-{request.node.name}-{number}")
    complaints = found.unexpected()
    found.close()
    assert not complaints, f"the page complained: {complaints}"


@pytest.fixture
def page(visitors: Visitors, site: Site) -> Page:
    """The overview, logged in as the administrator."""
    return visitors.enter(site)
