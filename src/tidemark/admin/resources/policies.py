"""/api/policies and /api/operator-policies: what is wanted of all queues and exchanges whose names match."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from tidemark.admin import paging
from tidemark.admin.answers import Refused, body, created, done, field
from tidemark.admin.routing import OBJECT, PAGING, TEXT, WHOLE, Entry, Needs, Schema, an_object, paged
from tidemark.admin.visit import Visit
from tidemark.errors import NotFound
from tidemark.model.wiring import OperatorPolicySpec, PolicySpec

KEYS: paging.Keys = {
    "name": lambda spec: spec.name,
    "vhost": lambda spec: spec.vhost,
    "pattern": lambda spec: spec.pattern,
    "priority": lambda spec: spec.priority,
    "apply-to": lambda spec: spec.apply_to,
}


def describe(spec: PolicySpec) -> dict[str, Any]:
    return {
        "vhost": spec.vhost,
        "name": spec.name,
        "pattern": spec.pattern,
        "apply-to": spec.apply_to,
        "definition": spec.definition,
        "priority": spec.priority,
    }


def read_policy(kind: type[PolicySpec], vhost: str, name: str, given: dict[str, Any]) -> PolicySpec:
    """Raises Refused for a field of the wrong type. What it means is the broker's to check."""
    return kind(
        vhost,
        name,
        field(given, "pattern", str),
        field(given, "apply-to", str, "all"),
        _whole(given.get("priority", 0)),
        field(given, "definition", dict),
    )


class Policies:
    """The resources of one of the two kinds."""

    def __init__(self, path: str, operator: bool) -> None:
        self._path = path
        self._operator = operator
        self._words = "operator policy" if operator else "policy"

    def _all(self, visit: Visit) -> Mapping[tuple[str, str], PolicySpec]:
        return visit.broker.operator_policies if self._operator else visit.broker.policies

    def _found(self, visit: Visit) -> PolicySpec:
        vhost, name = visit.vhost().name, visit.part("name")
        spec = self._all(visit).get((vhost, name))
        if spec is None:
            raise NotFound(reason=f"no {self._words} '{name}' in vhost '{vhost}'")
        return spec

    async def every(self, visit: Visit) -> Response:
        names = {host.name for host in visit.vhosts()}
        found = [spec for spec in self._all(visit).values() if spec.vhost in names]
        return await paging.listed(visit, found, describe, keys=KEYS, order=("vhost", "name"))

    async def one(self, visit: Visit) -> Response:
        return paging.shown(visit, describe(self._found(visit)))

    async def put(self, visit: Visit) -> Response:
        given, vhost, name = await body(visit.request), visit.vhost().name, visit.part("name")
        visit.must_enter(vhost)
        kind = OperatorPolicySpec if self._operator else PolicySpec
        spec = read_policy(kind, vhost, name, given)
        new = (vhost, name) not in self._all(visit)
        visit.broker.now_ms = visit.server.clock.now_ms()
        seq = visit.broker.put_policy(spec)
        visit.server.due()
        await visit.safe(seq)
        return created(new)

    async def delete(self, visit: Visit) -> Response:
        spec = self._found(visit)
        visit.must_enter(spec.vhost)
        visit.broker.now_ms = visit.server.clock.now_ms()
        seq = visit.broker.delete_policy(spec.vhost, spec.name, operator=self._operator)
        visit.server.due()
        await visit.safe(seq)
        return done()

    def routes(self) -> list[Entry]:
        needs: Needs = "administrator" if self._operator else "policymaker"
        many = "operator policies" if self._operator else "policies"
        one = self._path + "/{vhost}/{name}"
        a_list, tag = paged(POLICY), "policies"
        return [
            Entry("GET", self._path, self.every, f"All {many}", tag, PAGING, answer=a_list),
            Entry(
                "GET",
                self._path + "/{vhost}",
                self.every,
                f"The {many} of a virtual host",
                tag,
                PAGING,
                answer=a_list,
            ),
            Entry("GET", one, self.one, f"One {self._words}", tag, answer=POLICY),
            Entry("PUT", one, self.put, f"Set one {self._words}", tag, body=GIVEN, needs=needs),
            Entry("DELETE", one, self.delete, f"Clear one {self._words}", tag, needs=needs),
        ]


def _whole(value: Any) -> int:
    """Some clients write numbers as text."""
    if isinstance(value, str) and value.removeprefix("-").isdecimal() and value.isascii() and len(value) < 20:
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise Refused(400, "bad_request", "the field 'priority' must be a number")
    return value


POLICY: Schema = an_object(
    {"apply-to": TEXT}, vhost=TEXT, name=TEXT, pattern=TEXT, definition=OBJECT, priority=WHOLE
)
GIVEN: Schema = an_object({"apply-to": TEXT, "priority": WHOLE}, pattern=TEXT, definition=OBJECT)

routes = [
    *Policies("/policies", operator=False).routes(),
    *Policies("/operator-policies", operator=True).routes(),
]
