"""Members, leases and views in an etcd, through its JSON gateway (`http.py`).

    /tidemark/CLUSTER/members/NAME    what a member says about itself; bound to its lease, so it goes when the member does
    /tidemark/CLUSTER/addresses/NAME  where it listens for other members; stays when it goes
    /tidemark/CLUSTER/view            the view; changed only by a transaction that compares its revision first
    /tidemark/CLUSTER/groups/GROUP/   the same three of another group of the cluster (`ClusterConfig.identity`), nothing to this one

A *session* with one of the endpoints registers the member, reads everything at one moment and then watches what
changes, while the lease is renewed three times in its life. When the endpoint does not answer the next one is tried; the lease
goes along. A watch goes on from its revision; when etcd has compacted that away everything is read anew.

The lease counts from before its request was sent, less a margin for clocks that run at different speeds: whatever
happens on the way, ours ends before etcd's. With every renewal the view is read too, and told first, so that a lease never
vouches for a view that a broken watch has hidden.

A transaction whose answer did not come may have been made or not: the view is read back before anything is reported.
It may even be made later, by an etcd that was frozen; then it comes as a change like any other, still compared.

An etcd that was brought back from a copy counts from where the copy was made: what is read there is told though its revision is
lower.

Invariant: views are told in the order of their revisions, each once, as long as etcd keeps its data.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any

from tidemark.errors import MembershipAway
from tidemark.member.facts import (
    MemberFacts,
    MembershipEvents,
    decode_member,
    decode_view,
    encode_member,
    encode_view,
)
from tidemark.model.peers import Name, View
from tidemark.runtime.clock import ticks_ms
from tidemark.runtime.log import Log
from tidemark.runtime.membership.http import Endpoint, NoAnswer, NotConnected

PAUSE_S = 0.2
"""Between two rounds through endpoints that do not answer."""
RENEWALS = 3
"""In the life of a lease."""


class _NotSent(Exception):
    """The request has not reached an etcd: it is certain that nothing happened."""


class _Unknown(Exception):
    """The request was sent and its answer did not come, or says that nobody knows."""


class _LeaseLost(Exception):
    """Our lease has ended: others may have seen us go."""


class _Compacted(Exception):
    """The watch cannot go on from where it was."""


class EtcdMembership:
    def __init__(
        self,
        cluster: str,
        endpoints: Sequence[str],
        facts: Callable[[], MemberFacts],
        events: MembershipEvents,
        log: Log,
        lease_s: int = 2,
        margin: float = 0.25,
    ) -> None:
        """`endpoints` are HOST:PORT, or addresses with http:// or https://. `margin` is a share of the lease."""
        self._prefix = f"/tidemark/{cluster}/"
        self._view_key = self._prefix + "view"
        self._members_prefix = self._prefix + "members/"
        self._addresses_prefix = self._prefix + "addresses/"
        self.addresses: dict[Name, str] = {}
        """Where members listened when they were last here."""
        self._endpoints = [one if "://" in one else f"http://{one}" for one in endpoints]
        self._facts = facts
        self._events = events
        self._log = log
        self._lease_s = lease_s
        self._margin = margin
        self._request_s = lease_s / RENEWALS
        self._lease_id: str | None = None
        self._view: View | None = None
        self._view_revision = -1
        """Of what was told last; -1: nothing was."""
        self._revision = 0
        """Everything up to here was seen."""
        self._members: dict[Name, bytes] = {}
        self._clients: dict[str, Endpoint] = {}
        self._current = 0
        self._problem: str | None = ""
        """What was logged last about etcd; None: that it answers."""
        self._proposing = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        for endpoint in self._endpoints:
            self._client(endpoint)
        self._spawn(self._run())

    def propose(self, view: View) -> None:
        """Write this view if the one that it was derived from is still there. An event answers, later."""
        self._spawn(self._propose(view))

    async def close(self) -> None:
        """Leave: give the lease back, so that nobody has to wait for its end."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        lease, self._lease_id = self._lease_id, None
        if lease is not None:
            with contextlib.suppress(_NotSent, _Unknown, _LeaseLost):
                await self._post(self._endpoint(), "lease/revoke", {"ID": lease})
        for client in self._clients.values():
            client.close()

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._log.error("membership failed", error=task.exception())

    # Sessions ------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        failed = 0
        while True:
            try:
                await self._session(self._endpoint())
            except _Compacted:
                self._log.info("watch behind compaction", effect="everything is read anew")
                failed = 0
            except _LeaseLost:
                self._log.warning("lease lost", effect="registering anew")
                self._lease_id = None
                failed = 0
            except (_NotSent, _Unknown) as problem:
                self._away(str(problem))
                self._current = (self._current + 1) % len(self._endpoints)
                failed += 1
                if failed % len(self._endpoints) == 0:
                    await asyncio.sleep(PAUSE_S)
            except Exception as error:
                # An answer that we do not understand must not end our membership for good.
                self._log.error("unexpected exception", where="etcd", error=error)
                await asyncio.sleep(1)

    async def _session(self, endpoint: str) -> None:
        """Join and stay; ends only by an exception."""
        revision = await self._join(endpoint)
        tasks = {
            asyncio.ensure_future(self._keep_lease(endpoint)),
            asyncio.ensure_future(self._watch(endpoint, revision + 1)),
        }
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _join(self, endpoint: str) -> int:
        """Have a lease, register under it, and read everything; returns the revision of what was read."""
        began_ms, ttl_s = await self._lease(endpoint)
        own = self._facts()
        body = {
            "success": [
                {"request_put": _put(self._members_prefix + own.name, encode_member(own), self._lease_id)},
                {"request_range": _range(self._members_prefix, prefix=True)},
                {"request_range": _range(self._view_key)},
                {"request_put": _put(self._addresses_prefix + own.name, own.peer)},
                {"request_range": _range(self._addresses_prefix, prefix=True)},
            ]
        }
        known = self._revision
        answer = await self._post(endpoint, "kv/txn", body)
        revision = int(answer["header"]["revision"])
        if revision < known:
            self._log.error("etcd lost its data", revision=revision, before=known)
            self._revision, self._view_revision = revision, -1
        # A proposal that was answered meanwhile is newer than what was read here.
        self._revision = max(self._revision, revision)
        _, members, view, _, addresses = (next(iter(one.values())) for one in answer["responses"])
        for row in addresses.get("kvs", []):
            self.addresses[_name(row["key"], self._addresses_prefix)] = _decoded(row)
        self._snapshot(members.get("kvs", []))
        self._saw_view_of(view.get("kvs", []), revision)
        self._here()
        self._leased(began_ms, ttl_s)
        return revision

    async def _lease(self, endpoint: str) -> tuple[int, int]:
        """When it was asked for and how long it lasts from then: the one we have, or another."""
        if self._lease_id is not None:
            began_ms = ticks_ms()
            ttl_s = await self._renew(endpoint)
            if ttl_s:
                return began_ms, ttl_s
            self._log.warning("lease lost", effect="registering anew")
            self._lease_id = None
        began_ms = ticks_ms()
        answer = await self._post(endpoint, "lease/grant", {"TTL": str(self._lease_s)})
        self._lease_id = str(answer["ID"])
        return began_ms, int(answer["TTL"])

    async def _renew(self, endpoint: str) -> int:
        """Seconds that the lease is good for; 0 if it has ended."""
        answer = await self._post(endpoint, "lease/keepalive", {"ID": self._lease_id})
        if "result" not in answer:
            raise _Unknown(str(answer.get("error", answer)))
        return int(answer["result"].get("TTL", 0))

    async def _keep_lease(self, endpoint: str) -> None:
        while True:
            await asyncio.sleep(self._lease_s / RENEWALS)
            began_ms, known = ticks_ms(), self._revision
            ttl_s, (found, revision) = await asyncio.gather(self._renew(endpoint), self._read_view(endpoint))
            if revision < known:
                raise _Compacted  # it has lost what we have seen: look at all of it
            self._saw_view_of(found, revision)
            if not ttl_s:
                raise _LeaseLost
            self._leased(began_ms, ttl_s)

    def _leased(self, began_ms: int, ttl_s: int) -> None:
        self._events.lease(began_ms + int(ttl_s * 1000 * (1 - self._margin)))

    async def _watch(self, endpoint: str, revision: int) -> None:
        while True:
            body = {"create_request": _range(self._prefix, prefix=True) | {"start_revision": str(revision)}}
            async for found in self._lines(endpoint, "watch", body):
                if int(found.get("compact_revision", 0)):
                    raise _Compacted
                if found.get("canceled"):
                    raise _Unknown(
                        f"the watch was cancelled: {found.get('cancel_reason', 'no reason given')}"
                    )
                for event in found.get("events", ()):
                    self._saw(event)
                if found.get("events"):
                    revision = int(found["header"]["revision"]) + 1
                    self._revision = max(self._revision, revision - 1)
            # It ended in order: etcd restarts, or something between us cut it. Go on from there.
            await asyncio.sleep(PAUSE_S / 2)

    # What is seen ------------------------------------------------------------------------------------------------

    def _snapshot(self, rows: list[dict[str, Any]]) -> None:
        """All members as they are now."""
        found = {
            _name(row["key"], self._members_prefix): base64.b64decode(row.get("value", "")) for row in rows
        }
        for name in [name for name in self._members if name not in found]:
            self._gone(name)
        for name, value in found.items():
            self._came(name, value)

    def _saw(self, event: dict[str, Any]) -> None:
        row = event["kv"]
        key = base64.b64decode(row["key"]).decode()
        deleted = event.get("type") == "DELETE"
        if key == self._view_key:
            self._saw_view_of([] if deleted else [row], int(row["mod_revision"]))
        elif key.startswith(self._members_prefix):
            name = key.removeprefix(self._members_prefix)
            if not deleted:
                self._came(name, base64.b64decode(row.get("value", "")))
            elif name == self._facts().name:
                raise _LeaseLost
            else:
                self._gone(name)
        elif key.startswith(self._addresses_prefix) and not deleted:
            self.addresses[key.removeprefix(self._addresses_prefix)] = _decoded(row)

    def _came(self, name: Name, value: bytes) -> None:
        if self._members.get(name) == value:
            return
        try:
            facts = decode_member(name, value)
        except ValueError as problem:
            self._log.error("member not understood", member=name, problem=str(problem))
            return
        self._members[name] = value
        own = self._facts()
        if name == own.name and facts.peer != own.peer:
            self._log.error("name used twice", member=name, other=facts.peer, hint="set node.name of one")
        self._events.member_here(facts)

    def _gone(self, name: Name) -> None:
        if self._members.pop(name, None) is not None:
            self._events.member_gone(name)

    def _saw_view_of(self, rows: list[dict[str, Any]], revision: int) -> None:
        """The view's key as it was at `revision`."""
        if not rows:
            if revision > self._view_revision and (self._view is not None or self._view_revision < 0):
                self._tell_view(None, revision)
            return
        made = int(rows[0]["mod_revision"])
        # A read that is newer than the view that was told, and finds an older one, is of an etcd that was brought back.
        brought_back = made < self._view_revision <= revision
        if made <= self._view_revision and not brought_back:
            return
        if brought_back:
            self._log.error("etcd lost its data", revision=made, before=self._view_revision)
        try:
            view = decode_view(base64.b64decode(rows[0].get("value", "")), made)
        except ValueError as problem:
            self._log.error("view not understood", key=self._view_key, problem=str(problem))
            return
        self._tell_view(view, made)

    def _tell_view(self, view: View | None, revision: int) -> None:
        self._view, self._view_revision = view, revision
        self._revision = max(self._revision, revision)
        self._events.view_changed(view)

    # Proposals -----------------------------------------------------------------------------------------------------

    async def _propose(self, view: View) -> None:
        async with self._proposing:
            try:
                answer = await self._anywhere("kv/txn", self._change(view))
            except MembershipAway as problem:
                self._log.warning(
                    "view not written", epoch=view.epoch, leader=view.leader, problem=str(problem)
                )
                await asyncio.sleep(PAUSE_S)
                self._events.proposal_failed(view)
                return
            except _Unknown as problem:
                self._log.warning(
                    "view written or not", epoch=view.epoch, leader=view.leader, problem=str(problem)
                )
                await self._read_back(view)
                return
            revision = int(answer["header"]["revision"])
            if answer.get("succeeded"):
                if revision > self._view_revision:
                    self._tell_view(replace(view, revision=revision), revision)
                return
            self._saw_view_of(answer["responses"][0]["response_range"].get("kvs", []), revision)
            self._events.proposal_failed(view)

    def _change(self, view: View) -> dict[str, Any]:
        key = _encoded(self._view_key)
        compare = {"key": key, "target": "MOD", "result": "EQUAL", "mod_revision": str(view.revision)}
        return {
            "compare": [compare],
            "success": [{"request_put": _put(self._view_key, encode_view(view))}],
            "failure": [{"request_range": _range(self._view_key)}],
        }

    async def _read_back(self, view: View) -> None:
        """See what became of a proposal, however long it takes until an etcd answers."""
        while True:
            try:
                answer = await self._anywhere("kv/range", _range(self._view_key))
            except (MembershipAway, _Unknown):
                await asyncio.sleep(PAUSE_S)
                continue
            self._saw_view_of(answer.get("kvs", []), int(answer["header"]["revision"]))
            if self._view != view:
                self._events.proposal_failed(view)
            return

    # Requests ------------------------------------------------------------------------------------------------------

    def _endpoint(self) -> str:
        return self._endpoints[self._current]

    async def _read_view(self, endpoint: str) -> tuple[list[dict[str, Any]], int]:
        answer = await self._post(endpoint, "kv/range", _range(self._view_key))
        return answer.get("kvs", []), int(answer["header"]["revision"])

    async def _anywhere(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The answer of the first endpoint that can be reached.

        Raises:
            MembershipAway: none can; nothing was sent.
            _Unknown: one was reached, and its answer did not come.
        """
        problem = ""
        for turn in range(len(self._endpoints)):
            endpoint = self._endpoints[(self._current + turn) % len(self._endpoints)]
            try:
                return await self._post(endpoint, path, body)
            except _NotSent as error:
                problem = str(error)
        raise MembershipAway(endpoints=", ".join(self._endpoints), problem=problem)

    async def _post(self, endpoint: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
        try:
            answer = await self._client(endpoint).post(f"/v3/{path}", _json(body), self._request_s)
        except NotConnected as problem:
            raise _NotSent(f"{endpoint}: {problem}") from None
        except NoAnswer as problem:
            raise _Unknown(f"{endpoint}: {problem}") from None
        if answer.status == 404 and b"lease not found" in answer.body:
            raise _LeaseLost
        if not 200 <= answer.status < 300:
            raise _Unknown(f"{endpoint}: {answer.body[:200].decode(errors='replace').strip()}")
        found: dict[str, Any] = json.loads(answer.body)
        return found

    async def _lines(self, endpoint: str, path: str, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        lines = self._client(endpoint).lines(f"/v3/{path}", _json(body), self._request_s)
        try:
            async with contextlib.aclosing(lines):
                async for line in lines:
                    found = json.loads(line)
                    if "result" not in found:
                        raise _Unknown(f"{endpoint}: {found.get('error', found)}")
                    yield found["result"]
        except (NotConnected, NoAnswer) as problem:
            raise _Unknown(f"{endpoint}: {problem}") from None

    def _client(self, endpoint: str) -> Endpoint:
        client = self._clients.get(endpoint)
        if client is None:
            client = self._clients[endpoint] = Endpoint(endpoint)
        return client

    def _away(self, problem: str) -> None:
        if self._problem != problem:
            self._problem = problem
            self._log.warning("etcd away", problem=problem)

    def _here(self) -> None:
        if self._problem is not None:
            self._problem = None
            self._log.info("registered in etcd", endpoint=self._endpoint(), revision=self._revision)


def _json(body: dict[str, Any]) -> bytes:
    return json.dumps(body).encode()


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _name(key: str, prefix: str) -> Name:
    return base64.b64decode(key).decode().removeprefix(prefix)


def _decoded(row: dict[str, Any]) -> str:
    return base64.b64decode(row.get("value", "")).decode()


def _put(key: str, value: str, lease: str | None = None) -> dict[str, Any]:
    found = {"key": _encoded(key), "value": _encoded(value)}
    return found | {"lease": lease} if lease else found


def _range(key: str, *, prefix: bool = False) -> dict[str, Any]:
    """One key, or all that begin with it; it ends with a slash then."""
    if not prefix:
        return {"key": _encoded(key)}
    return {"key": _encoded(key), "range_end": _encoded(key[:-1] + "0")}
