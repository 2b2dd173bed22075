"""The management page: the files of `web/`, as a browser may have them.

All of them are read once, in a thread when the first is asked for, and are found by their exact path in a dictionary: a path that is not
one of ours, however it is spelled, is nobody's. The page itself is at `/` and is asked for anew each time; everything else lies
below `/assets/<hash of all files>/`, so that a browser keeps it for ever and an upgrade is seen at once. Modules name one
another relative to themselves, so no file knows of the hash but the page, into which it is put here.

Invariant: nothing outside of `web/` is ever sent.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from importlib.resources.abc import Traversable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".webmanifest": "application/manifest+json",
}
POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "manifest-src 'self'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        # Text never becomes markup or script, not even by mistake.
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    ]
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Vary": "Accept-Encoding",
}
ANEW = "no-cache"
FOR_EVER = "public, max-age=31536000, immutable"
PAGE = "index.html"
ICON = "icon.svg"
THEME = "js/theme.js"  # no module: it runs before anything is drawn


@dataclass(frozen=True, slots=True)
class File:
    """One file in both forms in which it is sent."""

    plain: bytes
    zipped: bytes
    kind: str
    keep: str
    etag: str


def routes() -> list[Route]:
    """To be put behind the routes of the API."""
    return [Route(path, answer) for path in ("/", "/favicon.ico", "/assets/{path:path}")]


async def answer(request: Request) -> Response:
    file = (await asyncio.to_thread(every_file)).get(request.scope["path"])
    if file is None:
        return missing()
    headers = {**HEADERS, "Cache-Control": file.keep, "ETag": file.etag}
    if file.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    content = file.plain
    if "gzip" in request.headers.get("accept-encoding", ""):
        content, headers["Content-Encoding"] = file.zipped, "gzip"
    return Response(content, headers=headers, media_type=file.kind)


def missing() -> Response:
    """For whatever is neither of the API nor a file."""
    return Response(
        "there is no such file here; the page is at /\n", 404, HEADERS, "text/plain; charset=utf-8"
    )


@cache
def every_file() -> dict[str, File]:
    """What can be asked for, by its path."""
    found = dict(sorted(_walk(files("tidemark.admin") / "web", "")))
    version = hashlib.sha256(b"".join(name.encode() + found[name] for name in found)).hexdigest()[:16]
    assets = f"/assets/{version}"
    modules = [name for name in found if name.endswith(".js") and name != THEME]
    preloads = "\n  ".join(
        f'<link rel="modulepreload" href="{escape(f"{assets}/{name}")}">' for name in modules
    )
    text = found.pop(PAGE).decode().replace("/assets/", f"{assets}/").replace("<!-- modules -->", preloads)
    served = {f"{assets}/{name}": _file(name, content, FOR_EVER) for name, content in found.items()}
    served["/"] = _file(PAGE, text.encode(), ANEW)
    served["/favicon.ico"] = _file(ICON, found[ICON], ANEW)
    return served


def _walk(folder: Traversable, prefix: str) -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _walk(entry, f"{prefix}{entry.name}/")
        elif f".{entry.name.rpartition('.')[2]}" in TYPES:
            yield prefix + entry.name, entry.read_bytes()


def _file(name: str, content: bytes, keep: str) -> File:
    kind = TYPES[f".{name.rpartition('.')[2]}"]
    # Weak, because both forms of it have the same one.
    etag = f'W/"{hashlib.sha256(content).hexdigest()[:20]}"'
    return File(content, gzip.compress(content, 9, mtime=0), kind, keep, etag)
