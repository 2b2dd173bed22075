"""What members, fronts and an etcd answer over HTTP."""

from __future__ import annotations

import base64
import http.client
import json
from collections.abc import Mapping
from typing import Any

from tidemark.cli.api import Api, path
from tidemark.cli.connection import FIRST_PASSWORD, FIRST_USER

ANSWER_S = 1.0


def get(address: str, path: str, headers: Mapping[str, str]) -> tuple[int, bytes]:
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=ANSWER_S)
    try:
        connection.request("GET", path, headers=dict(headers))
        answer = connection.getresponse()
        return answer.status, answer.read()
    except http.client.HTTPException as problem:
        raise OSError(str(problem)) from None
    finally:
        connection.close()


LOGIN = {"Authorization": f"Basic {base64.b64encode(b'guest:guest').decode()}"}


def ask(admin: str) -> dict[str, Any]:
    """What a member says of itself; nothing if it does not answer."""
    return _asked(admin, "/api/tidemark/cluster", LOGIN)


def ask_front(admin: str) -> dict[str, Any]:
    """What a front says of itself; nothing if it does not answer."""
    return _asked(admin, "/api/front", {})


def _asked(admin: str, path: str, headers: Mapping[str, str]) -> dict[str, Any]:
    try:
        status, text = get(admin, path, headers)
        found = json.loads(text)
    except (OSError, ValueError):
        return {}
    return found if status == 200 and isinstance(found, dict) else {}


def tell(admin: str, command: str, member: str) -> None:
    """Have a member do something, as 'tidemark ctl member' does.

    Raises:
        CommandError: it does not want to, or does not answer.
    """
    api = Api(f"http://{admin}", FIRST_USER, FIRST_PASSWORD)
    api.post(path("tidemark", "cluster", command), {"member": member})
