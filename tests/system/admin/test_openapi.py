"""The API of a running broker against its own OpenAPI document: what is generated from it is answered as it says.

For every operation schemathesis makes requests, good ones and bad ones, always the same. No answer may be a failure, and
each must be one that the document knows: its status, its content type and, when it has a body, its schema.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import schemathesis
from helpers.api import Api
from helpers.broker import BrokerProcess
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.core.failures import FailureGroup
from schemathesis.generation.modes import GenerationMode
from schemathesis.schemas import BaseSchema
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tidemark.admin.app import all_entries
from tidemark.admin.routing import Entry

EXAMPLES = 6
CHECKS = [
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
ENTRIES = [entry for entry in all_entries() if entry.media == "application/json"]
ALIVE = "/api/health/"
"""Checks of health say 503 when something is not well: that is their answer, not a failure."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path_factory.mktemp("openapi") / "data").start()
    api = Api(process.admin)
    api("PUT", "/queues/%2F/a-queue", {})
    api("PUT", "/streams/%2F/a-stream", {})
    yield process
    process.stop()
    failures = [line for line in process.log_path.read_text().splitlines() if "unexpected" in line]
    assert not failures, failures


@pytest.fixture(scope="module")
def schema(broker: BrokerProcess) -> BaseSchema:
    base = f"http://{broker.admin.host}:{broker.admin.port}"
    found: BaseSchema = schemathesis.openapi.from_url(f"{base}/api/openapi.json")
    found.config.generation.update(modes=[GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
    return found


def identity(entry: Entry) -> str:
    return f"{entry.method} {entry.full_path}"


@pytest.mark.parametrize("entry", ENTRIES, ids=identity)
def test_answers_are_as_the_document_says(schema: BaseSchema, entry: Entry) -> None:
    operation = schema[entry.full_path][entry.method]
    cases = st.one_of(
        operation.as_strategy(generation_mode=GenerationMode.POSITIVE),
        operation.as_strategy(generation_mode=GenerationMode.NEGATIVE),
    )

    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases)
    def check(case: schemathesis.Case) -> None:
        answer = case.call(auth=("guest", "guest"), timeout=20)
        failed = answer.status_code >= 500 and not (
            answer.status_code == 503 and entry.full_path.startswith(ALIVE)
        )
        assert not failed, (case.as_curl_command(), answer.status_code, answer.text[:500])
        case.validate_response(answer, checks=CHECKS)

    check()


def test_a_document_that_lies_is_found_out(broker: BrokerProcess) -> None:
    """Else the test above could be green whatever it is told."""
    base = f"http://{broker.admin.host}:{broker.admin.port}"
    document = Api(broker.admin).get("/openapi.json")
    answer = {"type": "object", "properties": {"name": {"type": "integer"}}, "required": ["name"]}
    document["paths"]["/api/whoami"]["get"]["responses"]["200"]["content"]["application/json"]["schema"] = (
        answer
    )
    lying = schemathesis.openapi.from_dict(document)
    case = lying["/api/whoami"]["GET"].Case()
    response = case.call(base_url=base, auth=("guest", "guest"))
    with pytest.raises(FailureGroup) as found:
        case.validate_response(response, checks=CHECKS)
    assert "integer" in str(found.value.exceptions[0])


@pytest.mark.parametrize(
    "entry",
    [
        entry
        for entry in ENTRIES
        if any(one.name == "columns" for one in entry.query) and "{" not in entry.path
    ],
    ids=identity,
)
def test_a_list_without_a_choice_of_columns_has_all_that_items_always_have(
    broker: BrokerProcess, entry: Entry
) -> None:
    assert entry.answer is not None
    shape = entry.answer["anyOf"][0]["items"] if "anyOf" in entry.answer else entry.answer
    found = Api(broker.admin).get(entry.path)
    for item in found if isinstance(found, list) else [found]:
        assert set(item) >= set(shape.get("x-always", shape.get("required", [])))
