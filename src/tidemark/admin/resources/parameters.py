"""/api/parameters and /api/global-parameters: settings of components, kept for whoever reads them.

Operator policies and limits of virtual hosts are parameters too, here as in RabbitMQ; they are checked like those that
come by their own paths. Policies are not: they have only theirs.
"""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from tidemark.admin import paging
from tidemark.admin.answers import Refused, body, created, done
from tidemark.admin.resources.policies import read_policy
from tidemark.admin.routing import ANYTHING, PAGING, TEXT, Entry, Schema, an_object, paged
from tidemark.admin.visit import Visit
from tidemark.errors import NotFound
from tidemark.model.wiring import GlobalParameterSpec, OperatorPolicySpec, ParameterSpec, PolicySpec

NAME_BYTES_MAX = 255
OPERATOR_POLICY = "operator_policy"
KEYS: paging.Keys = {
    "name": lambda spec: spec.name,
    "vhost": lambda spec: spec.vhost,
    "component": lambda spec: spec.component,
}


def describe(spec: ParameterSpec) -> dict[str, Any]:
    return {"vhost": spec.vhost, "component": spec.component, "name": spec.name, "value": spec.value}


def describe_global(spec: GlobalParameterSpec) -> dict[str, Any]:
    return {"name": spec.name, "value": spec.value}


def _all(visit: Visit) -> list[ParameterSpec]:
    return [*visit.broker.parameters.values(), *map(_of_policy, visit.broker.operator_policies.values())]


def _of_policy(spec: PolicySpec) -> ParameterSpec:
    value = {
        "pattern": spec.pattern,
        "definition": spec.definition,
        "priority": spec.priority,
        "apply-to": spec.apply_to,
    }
    return ParameterSpec(spec.vhost, OPERATOR_POLICY, spec.name, value)


async def every(visit: Visit) -> Response:
    names = {host.name for host in visit.vhosts()}
    component = visit.part("component") if "component" in visit.request.path_params else None
    found = [spec for spec in _all(visit) if spec.vhost in names and component in (None, spec.component)]
    return await paging.listed(visit, found, describe, keys=KEYS, order=("component", "vhost", "name"))


def _found(visit: Visit) -> ParameterSpec:
    vhost, component, name = visit.vhost().name, visit.part("component"), visit.part("name")
    for spec in _all(visit):
        if (spec.vhost, spec.component, spec.name) == (vhost, component, name):
            return spec
    raise NotFound(reason=f"no parameter '{name}' of '{component}' in vhost '{vhost}'")


async def one(visit: Visit) -> Response:
    return paging.shown(visit, describe(_found(visit)))


async def put(visit: Visit) -> Response:
    value = _value(await body(visit.request))
    spec = ParameterSpec(visit.vhost().name, visit.part("component"), visit.part("name"), value)
    visit.must_enter(spec.vhost)
    _check_names(spec.component, spec.name)
    new = all(
        (one.vhost, one.component, one.name) != (spec.vhost, spec.component, spec.name) for one in _all(visit)
    )
    visit.broker.now_ms = visit.server.clock.now_ms()
    seq = _put(visit, spec)
    visit.server.due()
    await visit.safe(seq)
    return created(new)


def _put(visit: Visit, spec: ParameterSpec) -> int:
    match spec.component:
        case "policy":
            raise Refused(400, "bad_request", "policies may not be set using this method: see /api/policies")
        case "operator_policy":
            visit.must_be_administrator()
            return visit.broker.put_policy(
                read_policy(OperatorPolicySpec, spec.vhost, spec.name, _object(spec))
            )
        case "vhost-limits":
            visit.must_be_administrator()
            if spec.name != "limits":
                raise Refused(400, "bad_request", "the limits of a virtual host are the parameter 'limits'")
            return visit.broker.put_vhost_limits(spec.vhost, _object(spec))
    return visit.broker.put(spec)


def _object(spec: ParameterSpec) -> dict[str, Any]:
    if not isinstance(spec.value, dict):
        raise Refused(400, "bad_request", "the field 'value' must be an object")
    return spec.value


async def delete(visit: Visit) -> Response:
    spec = _found(visit)
    visit.must_enter(spec.vhost)
    visit.broker.now_ms = visit.server.clock.now_ms()
    match spec.component:
        case "operator_policy":
            visit.must_be_administrator()
            seq = visit.broker.delete_policy(spec.vhost, spec.name, operator=True)
        case "vhost-limits":
            visit.must_be_administrator()
            seq = visit.broker.put_vhost_limits(spec.vhost, {})
        case _:
            seq = visit.broker.delete(spec)
    visit.server.due()
    await visit.safe(seq)
    return done()


def _check_names(*names: str) -> None:
    if not all(0 < len(name.encode("utf-8", "surrogateescape")) <= NAME_BYTES_MAX for name in names):
        raise Refused(400, "bad_request", f"the name of a parameter has 1 to {NAME_BYTES_MAX} bytes")


def _value(given: dict[str, Any]) -> Any:
    if "value" not in given:
        raise Refused(400, "bad_request", "the field 'value' is missing")
    return given["value"]


# Global -----------------------------------------------------------------------------------------------


async def every_global(visit: Visit) -> Response:
    return await paging.listed(
        visit, list(visit.broker.global_parameters.values()), describe_global, keys=KEYS
    )


def _found_global(visit: Visit) -> GlobalParameterSpec:
    name = visit.part("name")
    spec = visit.broker.global_parameters.get(name)
    if spec is None:
        raise NotFound(reason=f"no global parameter '{name}'")
    return spec


async def one_global(visit: Visit) -> Response:
    return paging.shown(visit, describe_global(_found_global(visit)))


async def put_global(visit: Visit) -> Response:
    given, name = await body(visit.request), visit.part("name")
    _check_names(name)
    new = name not in visit.broker.global_parameters
    visit.broker.now_ms = visit.server.clock.now_ms()
    await visit.safe(visit.broker.put(GlobalParameterSpec(name, _value(given))))
    return created(new)


async def delete_global(visit: Visit) -> Response:
    visit.broker.now_ms = visit.server.clock.now_ms()
    await visit.safe(visit.broker.delete(_found_global(visit)))
    return done()


PARAMETER: Schema = an_object(vhost=TEXT, component=TEXT, name=TEXT, value=ANYTHING)
GLOBAL: Schema = an_object(name=TEXT, value=ANYTHING)
GIVEN: Schema = an_object(value=ANYTHING)
OF, ONE = "/parameters/{component}", "/parameters/{component}/{vhost}/{name}"
ONE_GLOBAL = "/global-parameters/{name}"


def _list(path: str, resource: Any, words: str, item: Schema) -> Entry:
    return Entry("GET", path, resource, words, "parameters", PAGING, answer=paged(item), needs="policymaker")


def _one(method: str, path: str, resource: Any, words: str, **more: Any) -> Entry:
    needs: Any = "administrator" if path == ONE_GLOBAL and method != "GET" else "policymaker"
    return Entry(method, path, resource, words, "parameters", needs=needs, **more)


routes = [
    _list("/parameters", every, "All parameters", PARAMETER),
    _list(OF, every, "Parameters of a component", PARAMETER),
    _list(OF + "/{vhost}", every, "Parameters of a component in a virtual host", PARAMETER),
    _one("GET", ONE, one, "A parameter", answer=PARAMETER),
    _one("PUT", ONE, put, "Set a parameter", body=GIVEN),
    _one("DELETE", ONE, delete, "Clear a parameter"),
    _list("/global-parameters", every_global, "All global parameters", GLOBAL),
    _one("GET", ONE_GLOBAL, one_global, "A global parameter", answer=GLOBAL),
    _one("PUT", ONE_GLOBAL, put_global, "Set a global parameter", body=GIVEN),
    _one("DELETE", ONE_GLOBAL, delete_global, "Clear a global parameter"),
]
