"""The ids of log events. An id stays with its event for ever; `docs/log-events.md` says what each means and what to do.

    TM-1xxx  the process, its store and its limits        TM-4xxx  the cluster
    TM-2xxx  clients                                      TM-9xxx  what should not happen
    TM-3xxx  administration

A new event gets the next number of its group. An event that is not used any more keeps its number here, so that nobody
else gets it.

Invariant: no two events have the same id.
"""

from __future__ import annotations

UNKNOWN = "TM-0000"
"""The id of an event that is not in the table. A test keeps the source free of them."""

EVENTS: dict[str, str] = {
    # The process, its store and its limits
    "listening": "TM-1001",
    "stopped": "TM-1002",
    "store recovered": "TM-1003",
    "checkpoint made": "TM-1004",
    "checkpoint failed": "TM-1005",
    "store failed": "TM-1006",
    "stream damaged": "TM-1007",
    "free disk space unknown": "TM-1008",
    "publishers blocked": "TM-1009",
    "publishers unblocked": "TM-1010",
    "connections limited by open files": "TM-1011",
    "connections refused": "TM-1012",
    "running without compiled modules": "TM-1013",
    "uvloop is not installed": "TM-1014",
    "peer address ignored": "TM-1015",
    "policy pattern too slow": "TM-1016",
    "traces not sent": "TM-1017",
    # Clients
    "connection opened": "TM-2001",
    "connection closed": "TM-2002",
    "connection failed": "TM-2003",
    "login refused": "TM-2004",
    "consumer timed out": "TM-2005",
    "client passed on": "TM-2006",
    "client not passed on": "TM-2007",
    "leader lost": "TM-2008",
    # Administration
    "management login refused": "TM-3001",
    "administrative action": "TM-3002",
    "audit log not written": "TM-3003",
    "command of an administrator": "TM-3004",
    "connection closed by an operator": "TM-3005",
    "live reader too slow": "TM-3006",
    # The cluster
    "state of the member": "TM-4001",
    "view proposed": "TM-4002",
    "view written or not": "TM-4003",
    "view not written": "TM-4004",
    "view not understood": "TM-4005",
    "view not kept": "TM-4006",
    "member stops": "TM-4007",
    "member not understood": "TM-4008",
    "member not reached": "TM-4009",
    "member reached": "TM-4010",
    "member of another cluster": "TM-4011",
    "two members were promoted at once": "TM-4012",
    "left out and not told": "TM-4013",
    "name used twice": "TM-4014",
    "log cannot be read": "TM-4015",
    "link opened": "TM-4016",
    "link closed": "TM-4017",
    "link failed": "TM-4018",
    "link replaced": "TM-4019",
    "no link to source": "TM-4020",
    "secret readable by others": "TM-4021",
    "registered in etcd": "TM-4022",
    "etcd away": "TM-4023",
    "etcd lost its data": "TM-4024",
    "lease lost": "TM-4025",
    "watch behind compaction": "TM-4026",
    "membership failed": "TM-4027",
    "logs cut back": "TM-4028",
    "front listens": "TM-4029",
    "front gone": "TM-4030",
    "front cut off": "TM-4031",
    "main not reached": "TM-4032",
    "main reached": "TM-4033",
    "group not reached": "TM-4034",
    "group reached": "TM-4035",
    "messages not moved": "TM-4036",
    "messages moved": "TM-4037",
    "queue made again": "TM-4038",
    "store emptied": "TM-4039",
    "loss accepted": "TM-4040",
    "confirmed messages given up": "TM-4041",
    "members differ": "TM-4042",
    # What should not happen
    "unexpected": "TM-9001",
    "unexpected exception": "TM-9002",
}
