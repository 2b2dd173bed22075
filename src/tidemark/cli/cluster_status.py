"""What `tidemark cluster status` shows: a row a member and front, and below them which links are hurt.

In a terminal every row is one line. Where it is too narrow for all columns, why a member is as it is moves below the
table, and then columns go that tell the least. Into a file or a pipe everything is written, a line a row.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tidemark.cli.output import cell, numeric, table
from tidemark.cli.trial import Seen, Trial
from tidemark.cluster.chain.mode import tails_from
from tidemark.cluster.config import ClusterConfig
from tidemark.model.wiring import MAIN

if TYPE_CHECKING:
    from rich.console import Group

COLUMNS = (
    "name", "group", "state", "role", "epoch", "leader", "ready", "catalog", "journal", "lag", "connections", "pid", "why",
)  # fmt: skip
SPARED = ("pid", "catalog", "connections", "epoch", "leader", "journal")
"""What is left out of a table that is too wide, the first first."""
LEADING = ("active", "recovering")
GAP = 2
COLOURS = {
    "active": "bold green",
    "ready": "green",
    "serving": "green",
    "catch-up": "yellow",
    "recovering": "yellow",
}

Row = dict[str, Any]
Links = Mapping[str, Any]
"""What the proxies say: what is cut, and what is slow."""


# What is -----------------------------------------------------------------------------------------------------------


def rows(trial: Trial) -> tuple[list[Row], Links | None]:
    """How all are now, and the links; None if there is no proxy on them, or none that answers."""
    seen, links = trial.look(), trial.hurt()
    return facts(trial, seen, links), links


def facts(trial: Trial, seen: Sequence[Seen], links: Links | None) -> list[Row]:
    """One row each. Its lag is what the leader has in its journal and it has not on its disk, in records."""
    found = []
    played = roles(trial, seen)
    for one in seen:
        status, mine, furthest = one.status, one.end(), _furthest(seen, one)
        ready = status.get("ready")
        durable = status.get("durable") or {}
        found.append(
            {
                "name": one.name,
                "group": None if one.is_front else one.place.group,
                "state": one.state,
                "role": played.get(one.name),
                "epoch": status.get("epoch"),
                "leader": status.get("leader"),
                "ready": one.name in ready if isinstance(ready, list) else None,
                "catalog": durable.get("catalog"),
                "journal": mine,
                "lag": max(0, furthest - mine) if furthest is not None and mine is not None else None,
                "connections": status.get("connections"),
                "pid": one.pid,
                "why": status.get("why") or None,
                "links": None if links is None else _links_of(one.name, links),
                **({"status": status} if status else {}),
            }
        )
    return found


def roles(trial: Trial, seen: Sequence[Seen]) -> dict[str, str]:
    """What each ready member is for, in the order of its leader; nothing of groups that nobody leads, or two do."""
    found = {}
    tails = int(trial.settings.get("cluster.chain_tails", ClusterConfig().chain_tails))
    for group in trial.groups or (MAIN,):
        mine = {one.name: one for one in seen if not one.is_front and one.place.group == group}
        leading = [one for one in mine.values() if one.state in LEADING]
        if len(leading) != 1:
            continue
        order = leading[0].status.get("ready") or []
        for place, name in enumerate(order):
            if name not in mine or mine[name].state not in ("ready", *LEADING):
                continue
            if trial.groups.get(group, trial.mode) == "standby":
                found[name] = "backup" if place else "leader"
            elif place:
                found[name] = "tail" if place >= tails_from(len(order), tails) else "middle"
            else:
                found[name] = "head"
    return found


def _furthest(seen: Sequence[Seen], member: Seen) -> int | None:
    """How far the journal of whoever leads this one's group goes; of the furthest if nobody does."""
    mine = [one for one in seen if one.place.group == member.place.group and not one.is_front]
    leading = [one for one in mine if one.state in LEADING]
    return max((end for one in leading[-1:] or mine if (end := one.end("ends")) is not None), default=None)


def _links_of(name: str, links: Links) -> list[Row]:
    """What is hurt at this end."""
    cut = [{"from": one, "to": other, "cut": True} for one, other in links["cut"] if name in (one, other)]
    slow = [
        {"from": one, "to": other, "later_ms": ms} for one, other, ms in links["slow"] if name in (one, other)
    ]
    return cut + slow


def hurt(links: Links) -> list[str]:
    """A line for each direction that is cut or slow."""
    cut = [f"{sender} → {receiver}  cut" for sender, receiver in links["cut"]]
    return cut + [f"{sender} → {receiver}  {ms} ms later" for sender, receiver, ms in links["slow"]]


# How it is shown ---------------------------------------------------------------------------------------------------


def show(trial: Trial, *, as_json: bool) -> None:
    found, links = rows(trial)
    if as_json:
        print(json.dumps(found, indent=2, ensure_ascii=False), flush=True)
    elif sys.stdout.isatty():
        from rich.console import Console

        console = Console(highlight=False)
        console.print(drawn(trial, found, links, console.width))
    else:
        lines = [table(_worded(found), _columns(trial))]
        print("\n".join(lines + _below(trial, links)), flush=True)


def drawn(trial: Trial, found: Sequence[Row], links: Links | None, width: int) -> Group:
    """For a terminal of this width."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    worded = _worded(found)
    columns = fitting(worded, _columns(trial), width)
    made = Table(box=None, pad_edge=False, header_style="bold")
    for column, is_number in zip(columns, numeric(worded, columns), strict=True):
        made.add_column(column, justify="right" if is_number else "left", no_wrap=True, overflow="ellipsis")
    for row in worded:
        texts = [Text(cell(row[column])) for column in columns]
        texts[columns.index("state")].stylize(COLOURS.get(row["state"], "red"))
        made.add_row(*texts)
    lines = ([] if "why" in columns else reasons(worded)) + _below(trial, links)
    return Group(made, *(Text(line, no_wrap=True, overflow="ellipsis") for line in lines))


def fitting(found: Sequence[Row], columns: Sequence[str], width: int) -> list[str]:
    """The columns that a terminal of this width has room for without cutting any."""
    widths = {column: max(len(column), *(len(cell(row[column])) for row in found)) for column in columns}
    left = list(columns)
    for spared in ("why", *SPARED):
        if sum(widths[column] + GAP for column in left) - GAP <= width:
            break
        left = [column for column in left if column != spared]
    return left


def reasons(found: Sequence[Row]) -> list[str]:
    """Why members are as they are, those with the same reason in one line."""
    same: dict[str, list[str]] = {}
    for row in found:
        if row["why"]:
            same.setdefault(str(row["why"]), []).append(row["name"])
    return [
        f"{', '.join(names) if len(names) < 4 else f'{names[0]} and {len(names) - 1} more'}: {why}"
        for why, names in same.items()
    ]


def _worded(found: Sequence[Row]) -> list[Row]:
    return [row | {"role": row["role"] or "—"} for row in found]


def _columns(trial: Trial) -> list[str]:
    return [column for column in COLUMNS if column != "group" or trial.groups]


def _below(trial: Trial, links: Links | None) -> list[str]:
    if links is None:
        return ["the proxies do not answer, so no link carries anything"] if trial.control is not None else []
    return hurt(links)
