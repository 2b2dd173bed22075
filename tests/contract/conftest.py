"""The world of the tests that ask for no other one."""

from __future__ import annotations

import pytest
from unit.node.world import NodeWorld


@pytest.fixture
def world() -> NodeWorld:
    return NodeWorld()
