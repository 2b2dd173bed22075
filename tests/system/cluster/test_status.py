"""What a broker that stands alone says of its cluster."""

from __future__ import annotations

import json
import urllib.error
import urllib.request

import pytest
from helpers.broker import BrokerProcess

from tidemark.cli.trial import ask


def test_a_broker_that_stands_alone_says_so_and_takes_changes(own_broker: BrokerProcess) -> None:
    admin = f"{own_broker.admin.host}:{own_broker.admin.port}"
    assert ask(admin) == {"name": "tidemark", "state": "alone", "connections": 0}
    request = urllib.request.Request(
        f"http://{admin}/api/queues/%2F/made",
        method="PUT",
        data=json.dumps({"durable": True}).encode(),
        headers={"Authorization": "Basic Z3Vlc3Q6Z3Vlc3Q=", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.status == 201


def test_nobody_sees_it_without_a_login(own_broker: BrokerProcess) -> None:
    url = f"http://{own_broker.admin.host}:{own_broker.admin.port}/api/tidemark/cluster"
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(url, timeout=10)
    assert refused.value.code == 401
