"""Which lives of a queue are over: what its group knows of one that main has the name of.

A queue of another group is in two places: its name and bindings in main, itself in its group. A declare goes to main first, a
delete to the group first, and whoever is in between may be killed, or stand still for minutes. So main counts the lives of such a queue.
It begins with its number, and all that fronts say to the group about the queue names the life they mean:

    main   QueueSpec.incarnation of the stand-in   told to fronts with the wiring
    group  QueueSpec.incarnation of the queue      what it was made as; 0: by somebody who did not say (a client, an older front)
    group  Gone                                    what was deleted

    front ── make q, life 17 ──► group    17 is over, or q is in a later life: "gone", and nothing is made. Else it is there, as 17
    front ── end q, life 17 ───► group    q goes, and 17 is over, whether q was there or not
    front ── end q, life 17 ───► main     the name goes, if q is still in life 17 there; else the front begins again with the life it is in
    front ── renew q, life 17 ─► main     if q is still in life 17 there, it is in a new one from now on: 17 can be ended no more

A life that is over never begins again. Who finds it so while main still has the name (he has a message for the queue, declares it or
consumes from it) cannot know whether somebody is about to delete the name or has died. He lets main begin a new life, with the same
bindings and what waits in the stand-in, and goes on with that. If there is somebody, he finds the name in another life than he has ended, and
ends that one, too, before he says that the queue is deleted.

| what happens | then |
|---|---|
| the front dies, or is cut off, between the two ends | the delete was not confirmed. The queue is there, empty, when somebody uses it next |
| it stands still there, and nobody uses the queue | it ends the name |
| it stands still there, and a message is moved on, or somebody declares or consumes | a new life, with what came in it; the front ends that one, too, and confirms then. With if-empty the second end is refused |
| if-empty, and messages wait in main | main refuses the end of the name, and the client hears it; those messages are moved into a new life |
| a make or a moved message of an old life comes minutes late | the group refuses it |
| two fronts delete | both end the same life; the second finds it over, here and there |
| one deletes, and another declares in between | the declare finds a new life, which the first ends, too; or a new queue, which it leaves alone |
| the leader of the group dies after an end | an end is answered when it is safe: it is known to the next leader, or was not answered |
| the leader of main dies after a renewal | the same; nobody is told a life before it is safe |
| main is older than the group (it was restored, or begun anew) | main goes on behind the life that the group knows, and the queue keeps its messages |
| somebody made the queue without saying its life | it is taken for the one that main has next, with its messages; a stream is in none that is over |

A queue is never emptied because of its number: what is in it was confirmed to somebody. So if a life that is over were begun after
all, its messages would be seen in the next one. That takes a front that stands still while as many other queues as are
remembered (`GONE_MAX`) are deleted in the group.

Older versions: brokers of a group pass over what they do not know of changes, and then all is as it was without lives. Fronts
say lives only to leaders that say they know them (`LIVES`).

Invariant: no life is both over and in `queues`.
"""

from __future__ import annotations

from collections.abc import Iterator

from tidemark.model.wiring import QueueSpec

GONE_MAX = 10_000
"""How many names are remembered; the oldest are forgotten first."""


class Gone:
    """The last life that is over, by virtual host and name. Every reader of the catalog makes the same of it."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, str], int] = {}

    def __len__(self) -> int:
        return len(self._last)

    def last(self, vhost: str, name: str) -> int:
        """No life up to this one may begin; 0: any may."""
        return self._last.get((vhost, name), 0)

    def next(self, vhost: str, name: str) -> int:
        """A life that is not over, if any is; 0: any will do."""
        last = self.last(vhost, name)
        return last + 1 if last else 0

    def ended(self, spec: QueueSpec) -> None:
        """A queue was deleted, or was not there to be."""
        if spec.incarnation:
            before = self._last.pop((spec.vhost, spec.name), 0)
            self._last[spec.vhost, spec.name] = max(before, spec.incarnation)
            if len(self._last) > GONE_MAX:
                del self._last[next(iter(self._last))]

    def made(self, spec: QueueSpec) -> None:
        """A queue is there: its own life says which are over."""
        if spec.incarnation > self.last(spec.vhost, spec.name) and not spec.group:
            self._last.pop((spec.vhost, spec.name), None)

    def specs(self) -> Iterator[QueueSpec]:
        """What `ended` must be told to remember as much, in this order."""
        return (QueueSpec(vhost, name, incarnation=life) for (vhost, name), life in self._last.items())
