"""A cluster on this machine, to try things with: an etcd, some brokers, fronts if there are several groups, and proxies on
their links if wanted.

The nodes of a trial stand for machines: n1, n2, … A cluster of one group has a member on each, with the node's name. One of
several groups has on each node a member of every group, GROUP-NODE (fast-n2), and a front with the node's name.

A trial lives in a directory: `cluster.json` says what belongs to it and which processes run, each member has its
data and its log beside it. Whoever loads the directory can kill, freeze and start members; nobody has to stay.
Each process is written down as it starts, so none is ever left that a later call does not know. Calls that start or stop
things do so one after the other (`alone`).
Ports are chosen once, outside the range that the system gives to outgoing connections, so that a member which
starts again finds its own free.

Invariant: a process is only ever signalled while its start time is the one that was noted when it was started, and
nothing is deleted that was not written here.
"""

from tidemark.cli.trial.asking import ask
from tidemark.cli.trial.cluster import ETCD, LINKS, WELL, Mode, Trial
from tidemark.cli.trial.directory import alone, holds_cluster
from tidemark.cli.trial.etcd import Etcd
from tidemark.cli.trial.members import Place, Seen
from tidemark.cli.trial.processes import HOST, Process, free_ports

__all__ = [
    "ETCD",
    "HOST",
    "LINKS",
    "WELL",
    "Etcd",
    "Mode",
    "Place",
    "Process",
    "Seen",
    "Trial",
    "alone",
    "ask",
    "free_ports",
    "holds_cluster",
]
