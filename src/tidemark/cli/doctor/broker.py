"""Checks of the broker that runs, through its management API: version, alarms, health, backlog, members, clocks."""

from __future__ import annotations

import email.utils
import time
from collections.abc import Iterator
from typing import Any

from tidemark import __version__
from tidemark.cli import CommandError
from tidemark.cli.api import Api, NoAnswer, Refusal, path
from tidemark.cli.ctl.health import CHECKS
from tidemark.cli.ctl.members import rows_of
from tidemark.cli.doctor.finding import Finding, Level, fail, ok, size, warn

PATIENCE_S = 5.0
SKEW_S = 2.0
"""The time in an answer is in whole seconds, so less than that cannot be told."""
BACKLOG = 100_000
LAG_RECORDS = 100_000
SERVES = "ready-to-serve-clients"
SHARE = 0.8
GOOD_STATES = ("alone", "active", "ready")


def reached(api: Api, held: int | None) -> tuple[list[Finding], bool]:
    """Whether a broker answers, and whether we may look at it."""
    api.timeout_s = PATIENCE_S
    try:
        found = api.get(path("overview"))
    except NoAnswer as problem:
        if held is not None:
            text = f"process {held} has the data directory open, and the broker does not answer: {problem}"
            return [
                fail(
                    "broker.answer",
                    text,
                    "look into its log; a broker that hangs can be seen with 'py-spy dump'",
                )
            ], False
        return [
            ok("broker.answer", f"no broker answers at {api.url}: only this machine was looked at")
        ], False
    except Refusal as problem:
        text = f"{api.url} answers, but not to user '{api.user}': {problem}"
        return [
            warn(
                "broker.login",
                text,
                "give --user and --password-file of one with the tag monitoring, to see more",
            )
        ], False
    except CommandError as problem:
        return [fail("broker.answer", str(problem), "give --url as http://HOST:PORT")], False
    findings = [_version(api, found)]
    return [*findings, *_skew(api, "this machine", time.time())], True


def _version(api: Api, found: dict[str, Any]) -> Finding:
    version = str(found.get("product_version"))
    text = f"{found.get('product_name')} {version} '{found.get('node')}' answers at {api.url}"
    if found.get("product_name") != "Tidemark":
        return warn("broker.version", text, "that is another broker: give --url of a Tidemark")
    if version != __version__:
        return warn(
            "broker.version", f"{text}; this command is {__version__}", "use the same version of both"
        )
    if not found.get("compiled", True):
        return warn(
            "broker.version", f"{text}, without compiled modules", "unset TIDEMARK_PURE where it is started"
        )
    return ok("broker.version", text)


def _skew(api: Api, other: str, now_s: float, check: str = "clock.skew") -> list[Finding]:
    told = email.utils.parsedate_to_datetime(api.date).timestamp() if api.date else None
    if told is None:
        return []
    # The second that was told began up to a second ago.
    off_s = told + 0.5 - now_s
    text = f"the clock of {api.url} is {abs(off_s):.0f} s {'ahead of' if off_s > 0 else 'behind'} that of {other}"
    if abs(off_s) > SKEW_S:
        return [warn(check, text, "synchronise both with NTP")]
    return [ok(check, f"the clocks of {api.url} and {other} agree")]


def health(api: Api) -> Iterator[Finding]:
    for name in CHECKS:
        try:
            api.get(path("health", "checks", *name.split("/")))
        except Refusal as problem:
            if problem.status != 503:
                continue  # this version, or this user, has not got that check
            document = problem.document if isinstance(problem.document, dict) else {}
            reason = document.get("reason") or str(problem)
            if name == SERVES and _follows(api):
                yield ok("broker.health", f"{name}: {reason}, as it should be")
                continue
            yield fail("broker.health", f"{name}: {reason}", ADVICE.get(name, "look into the broker's log"))
        else:
            yield ok("broker.health", f"{name} is ok")


def _follows(api: Api) -> bool:
    """Whether it is a member of a cluster that is ready, and another one leads."""
    try:
        return bool(api.get(path("tidemark", "standing"))["state"] == "ready")
    except (Refusal, LookupError, TypeError):
        return False


ADVICE = {
    "alarms": "publishers wait until this is over: consume or purge queues, free the disk, or raise the limit",
    "node-is-running": "its store has failed: look into its log and at the disk, then restart it",
}


def node(api: Api) -> Iterator[Finding]:
    for one in _rows(api, "nodes"):
        name = one.get("name")
        used, limit = one.get("mem_used"), one.get("mem_limit")
        if used is not None and limit:
            text = f"{name} uses {size(used)} of {size(limit)} memory"
            yield (
                warn("broker.memory", text, "more memory, smaller store.cache_bytes, or fewer connections")
                if used > SHARE * limit
                else ok("broker.memory", text)
            )
        free, least = one.get("disk_free"), one.get("disk_free_limit")
        if isinstance(free, int) and least and free < 2 * least:
            yield warn(
                "broker.disk",
                f"{name} has {size(free)} of disk left, publishers wait below {size(least)}",
                "free some, or consume what is in the queues",
            )
        files, most = one.get("fd_used"), one.get("fd_total")
        if files and most and files > SHARE * most:
            yield warn("broker.files", f"{name} has {files:,} of {most:,} files open", "raise LimitNOFILE")


def backlog(api: Api) -> Iterator[Finding]:
    rows = api.get(path("queues"), page="1", page_size="20", sort="messages_ready", sort_reverse="true")
    rows = rows["items"] if isinstance(rows, dict) else rows
    lonely = [
        row
        for row in rows
        if row.get("messages_ready", 0) > BACKLOG and not row.get("consumers") and row.get("type") != "stream"
    ]
    for row in lonely[:5]:
        yield warn(
            "broker.backlog",
            f"queue '{row['name']}' in '{row['vhost']}' has {row['messages_ready']:,} messages and no consumer",
            "start a consumer, set a policy with max-length or message-ttl, or purge it",
        )
    if not lonely:
        yield ok("broker.backlog", "no long queue without a consumer")


def streams(api: Api) -> Iterator[Finding]:
    expired = [mark for mark in _rows(api, "marks") if mark.get("expired")]
    for mark in expired[:5]:
        yield warn(
            "streams.marks",
            f"consumer '{mark['consumer']}' of stream '{mark['stream']}' stayed away longer than its lease",
            f"start it, or forget it: tidemark ctl marks delete {mark['stream']} {mark['consumer']}",
        )


def first_password(api: Api, open_listeners: list[str]) -> Iterator[Finding]:
    """Whether the user that every new broker has still has the password that everybody knows."""
    guest = Api(api.url, "guest", "guest", api.ca_file)
    guest.timeout_s = PATIENCE_S
    try:
        guest.get(path("whoami"))
    except CommandError:
        yield ok("broker.guest", "guest with password guest may not log in from here")
        return
    finally:
        guest.close()
    text = "user guest has the password that everybody knows"
    if open_listeners:
        yield warn(
            "broker.guest",
            f"{text}; it may log in from this machine only, unless broker.loopback_users was changed",
            "make a user of your own and delete it: tidemark ctl users add …; tidemark ctl users delete guest",
        )
    else:
        yield ok("broker.guest", f"{text}, and only this machine can connect")


def cluster(api: Api) -> Iterator[Finding]:
    try:
        seen = api.get(path("tidemark", "cluster"))
    except Refusal:
        return
    if seen["state"] == "alone":
        yield ok("cluster.member", f"{seen['name']} stands alone")
        return
    level = Level.ok if seen["state"] in GOOD_STATES else Level.warn
    text = f"{seen['name']} is {seen['state']}, {seen.get('leader') or 'nobody'} leads, epoch {seen.get('epoch')}"
    advice = f"wait, or see why: {seen.get('why') or 'tidemark ctl member status'}"
    yield Finding("cluster.member", level, text, advice)
    if not seen.get("leader"):
        yield fail(
            "cluster.leader", "nobody leads: publishers wait", "see that etcd answers and members are up"
        )
    rows = rows_of(seen)
    known = _members(api) or rows
    ready = [row["name"] for row in rows if row.get("ready")]
    if len(ready) < 2:
        yield warn(
            "cluster.copies",
            f"{len(ready)} member has everything that is confirmed",
            "start the others and wait until they are ready: until then a lost disk is lost messages",
        )
    else:
        yield ok(
            "cluster.copies", f"{len(ready)} members have everything that is confirmed: {', '.join(ready)}"
        )
    for row in known:
        if (row.get("lag") or 0) > LAG_RECORDS:
            yield warn(
                "cluster.lag",
                f"{row['name']} is {row['lag']:,} records behind",
                "its disk or its network is slower than the leader's: run 'tidemark doctor' there",
            )
    if differing := seen.get("differing"):
        yield fail(
            "cluster.alike",
            f"{seen['name']} does not hold what {seen.get('leader')} does: {', '.join(differing)}",
            "see 'When members differ' in docs/operations.md: 'tidemark ctl member refill' there fills it again",
        )
    yield from _clocks(api, known)


def _members(api: Api) -> list[dict[str, Any]]:
    try:
        return _rows(api, "members")
    except CommandError:
        return []


def _clocks(api: Api, members: list[dict[str, Any]]) -> Iterator[Finding]:
    """Clocks of the members whose admin address is known."""
    for row in members:
        url = row.get("admin")
        if not isinstance(url, str) or not url:
            continue
        url = url if "://" in url else f"http://{url}"
        if url.rstrip("/") == api.url:
            continue
        # Without our password: that is for the broker that was named.
        other = Api(url, "", "", api.ca_file)
        other.timeout_s = PATIENCE_S
        try:
            other.get(path("health", "live"))
        except NoAnswer as problem:
            yield warn(
                "cluster.members", f"{row['name']}: {problem}", "start it, or run 'tidemark doctor' there"
            )
            continue
        except CommandError:
            pass  # it said no, and what time it is
        finally:
            other.close()
        yield from _skew(other, "this machine", time.time(), "cluster.clock")


def _rows(api: Api, kind: str) -> list[dict[str, Any]]:
    try:
        found = api.get(path(kind))
    except Refusal:
        return []
    return list(found["items"] if isinstance(found, dict) else found)
