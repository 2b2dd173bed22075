"""How a change of the wiring is made: exchanges, bindings, permissions and policies.

A broker makes these changes in its virtual hosts, and so does whoever has a copy of its wiring (`wiring_copy.py`): the
same functions, so that both route alike. What a change means to messages and connections is the broker's business.

Invariant: putting what is there and deleting what is not are no errors.
"""

from __future__ import annotations

from typing import Any, Protocol

from tidemark.broker.access import Access
from tidemark.broker.exchanges import Exchange
from tidemark.broker.vhost import VirtualHost
from tidemark.model.wiring import BindingSpec, ExchangeSpec, OperatorPolicySpec, PolicySpec


class Wired(Protocol):
    """What has wiring."""

    vhosts: dict[str, VirtualHost]
    access: Access
    policies: dict[tuple[str, str], PolicySpec]
    operator_policies: dict[tuple[str, str], OperatorPolicySpec]


def delete_rules(wired: Wired, vhost: str) -> None:
    """The virtual host is gone: so is what was allowed and wanted there."""
    wired.access.remove_vhost(vhost)
    for policies in (wired.policies, wired.operator_policies):
        for key in [key for key in policies if key[0] == vhost]:
            del policies[key]


def delete_user(wired: Wired, name: str) -> None:
    wired.access.remove_user(name)
    for vhost in wired.vhosts.values():
        vhost.forget_routes()


def put_exchange(wired: Wired, spec: ExchangeSpec) -> None:
    vhost = wired.vhosts[spec.vhost]
    if spec.name not in vhost.exchanges:
        vhost.add_exchange(spec)


def delete_exchange(wired: Wired, spec: ExchangeSpec) -> None:
    vhost = wired.vhosts.get(spec.vhost)
    if vhost is not None and spec.name in vhost.exchanges:
        vhost.remove_exchange(vhost.exchanges[spec.name])


def put_binding(wired: Wired, spec: BindingSpec) -> None:
    wired.vhosts[spec.vhost].add_binding(spec)


def delete_binding(wired: Wired, spec: BindingSpec) -> None:
    vhost = wired.vhosts.get(spec.vhost)
    if vhost is not None:
        vhost.remove_binding(spec)


def put_permission(wired: Wired, spec: Any) -> None:
    wired.access.permissions[spec.user, spec.vhost] = spec
    _forget_routes(wired, spec.vhost)


def delete_permission(wired: Wired, spec: Any) -> None:
    wired.access.permissions.pop((spec.user, spec.vhost), None)
    _forget_routes(wired, spec.vhost)


def put_topic_permission(wired: Wired, spec: Any) -> None:
    wired.access.topic_permissions[spec.user, spec.vhost, spec.exchange] = spec
    _forget_routes(wired, spec.vhost)


def delete_topic_permission(wired: Wired, spec: Any) -> None:
    wired.access.topic_permissions.pop((spec.user, spec.vhost, spec.exchange), None)
    _forget_routes(wired, spec.vhost)


def _forget_routes(wired: Wired, vhost: str) -> None:
    """A living route means that its publisher may publish there."""
    if vhost in wired.vhosts:
        wired.vhosts[vhost].forget_routes()


def put_policy(wired: Wired, spec: PolicySpec) -> None:
    wired.policies[spec.vhost, spec.name] = spec
    _govern(wired, spec, put=True, operator=False)


def delete_policy(wired: Wired, spec: PolicySpec) -> None:
    wired.policies.pop((spec.vhost, spec.name), None)
    _govern(wired, spec, put=False, operator=False)


def put_operator_policy(wired: Wired, spec: OperatorPolicySpec) -> None:
    wired.operator_policies[spec.vhost, spec.name] = spec
    _govern(wired, spec, put=True, operator=True)


def delete_operator_policy(wired: Wired, spec: OperatorPolicySpec) -> None:
    wired.operator_policies.pop((spec.vhost, spec.name), None)
    _govern(wired, spec, put=False, operator=True)


def _govern(wired: Wired, spec: PolicySpec, *, put: bool, operator: bool) -> None:
    """Let all that the policy applied to, or applies to now, go by what is in force."""
    vhost = wired.vhosts.get(spec.vhost)
    if vhost is None:
        return
    rules = vhost.rules
    change = rules.put(spec) if put else rules.remove(spec.name, operator=operator)
    objects: list[Any] = [*vhost.exchanges.values(), *vhost.queues.values()]
    guarded = False
    for one in objects:
        applied = change.applied(one)
        if applied is one.applied:
            continue
        if isinstance(one, Exchange):
            vhost.govern_exchange(one, applied)
        else:
            was_guarded = one.guarded
            one.govern(applied)
            guarded = guarded or one.guarded != was_guarded
    if guarded:
        vhost.forget_routes()  # they remember whether a queue must be asked
    rules.rested()
