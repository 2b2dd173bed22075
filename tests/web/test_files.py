"""The files of the page: what is in them, and how they are served."""

from __future__ import annotations

import gzip
import re
import socket
from pathlib import Path

import pytest
from web.conftest import Site

from tidemark.admin import pages

WEB = Path(pages.__file__).with_name("web")
SOURCES = sorted(path for path in WEB.rglob("*") if path.suffix in {".js", ".html", ".css", ".svg"})
MARKUP = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment|DOMParser|srcdoc|\beval\(|new Function"
)


def asset(site: Site, name: str) -> str:
    found = re.search(r'href="(/assets/[0-9a-f]+/)style\.css"', site.client.get(site.url).text)
    assert found, "the page names no style sheet"
    return site.url + found[1] + name


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(WEB)))
def test_no_file_can_turn_text_into_markup(path: Path) -> None:
    assert not MARKUP.search(path.read_text("utf-8"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(WEB)))
def test_no_file_asks_another_server_for_anything(path: Path) -> None:
    named = re.findall(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]+[^\s\"'`)]*", path.read_text("utf-8"))
    assert set(named) <= {"http://www.w3.org/2000/svg"}


def test_the_page_has_no_inline_script_and_no_inline_style(site: Site) -> None:
    text = site.client.get(site.url).text
    assert not re.search(r"<script(?![^>]*\ssrc=)|<style|\sstyle=|\son[a-z]+=", text)


def test_the_page_is_asked_for_anew_and_its_parts_are_kept_for_ever(site: Site) -> None:
    whole, part = site.client.get(site.url), site.client.get(asset(site, "js/main.js"))

    assert whole.headers["cache-control"] == "no-cache"
    assert whole.headers["content-type"] == "text/html; charset=utf-8"
    assert "immutable" in part.headers["cache-control"]
    assert part.headers["content-type"].startswith("text/javascript")
    assert part.text == (WEB / "js/main.js").read_text("utf-8")


def test_every_module_that_is_named_is_there(site: Site) -> None:
    for path in re.findall(r'(?:href|src)="(/assets/[^"]+)"', site.client.get(site.url).text):
        assert site.client.get(site.url + path).status_code == 200, path


def test_what_has_not_changed_is_not_sent_again(site: Site) -> None:
    for url in (site.url, asset(site, "style.css")):
        first = site.client.get(url)
        again = site.client.get(url, headers={"If-None-Match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        assert site.client.get(url, headers={"If-None-Match": '"other"'}).status_code == 200


def test_files_are_zipped_for_those_who_can_unzip_them(site: Site) -> None:
    url = asset(site, "style.css")
    with site.client.stream("GET", url, headers={"Accept-Encoding": "gzip"}) as answer:
        packed = b"".join(answer.iter_raw())
        assert answer.headers["content-encoding"] == "gzip"
    plain = site.client.get(url, headers={"Accept-Encoding": "identity"})

    assert "content-encoding" not in plain.headers
    assert gzip.decompress(packed) == plain.content
    assert len(packed) < len(plain.content) / 2


def test_a_browser_is_told_to_run_and_load_nothing_but_ours(site: Site) -> None:
    headers = site.client.get(site.url).headers
    policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))

    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["default-src"] == policy["base-uri"] == policy["frame-ancestors"] == "'none'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "path",
    [
        "/assets/../pages.py",
        "/assets/%2e%2e/pages.py",
        "/assets/VERSION/../../pages.py",
        "/assets/VERSION/%2e%2e/%2e%2e/pages.py",
        "/assets/VERSION/js/..%2f..%2f..%2fpages.py",
        "/assets/VERSION/js\\..\\..\\pages.py",
        "/assets/VERSION//etc/passwd",
        "/assets/VERSION/",
        "/assets/VERSION/js",
        "/assets/VERSION/js/main.js%00.css",
        "/assets/VERSION/STYLE.CSS",
        "/assets/0000000000000000/style.css",
        "/assets/VERSION/index.html",
        "/index.html",
        "/../../../../etc/passwd",
    ],
)
def test_a_path_that_is_none_of_ours_gets_nothing(site: Site, path: str) -> None:
    version = asset(site, "").split("/")[-2]
    address = site.process.admin
    with socket.create_connection((address.host, address.port), timeout=10) as line:
        # By hand: a client would tidy the path before it sends it.
        line.sendall(
            f"GET {path.replace('VERSION', version)} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()
        )
        answer = b""
        while part := line.recv(65536):
            answer += part
    assert re.match(rb"HTTP/1.1 (404|400) ", answer), answer[:200]
    assert b"import " not in answer and b"root:" not in answer


def test_files_can_be_looked_at_and_not_changed(site: Site) -> None:
    assert site.client.head(site.url).status_code == 200
    for method in ("POST", "PUT", "DELETE"):
        assert site.client.request(method, site.url).status_code == 405
