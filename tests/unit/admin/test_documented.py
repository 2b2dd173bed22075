"""docs/http-api.md has every endpoint that there is, and none that there is not."""

from __future__ import annotations

import re
from pathlib import Path

from tidemark.admin.app import all_entries

PAGE = Path(__file__).resolve().parents[3] / "docs" / "http-api.md"
ROW = re.compile(r"^\| `(/[^`]*)` \| (.*) \| [^|]+ \|$", re.MULTILINE)
METHOD = re.compile(r"(?:^|; )(GET|PUT|POST|DELETE|PATCH) ")


def test_the_page_names_exactly_the_endpoints_that_there_are() -> None:
    _, _, tables = PAGE.read_text().partition("## All paths")
    written = {(method, path) for path, words in ROW.findall(tables) for method in METHOD.findall(words)}
    routed = {(entry.method, entry.path) for entry in all_entries()}
    assert routed - written == set(), "not in docs/http-api.md"
    assert written - routed == set(), "in docs/http-api.md, but not there"
