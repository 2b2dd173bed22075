"""A cluster on this machine: what belongs to it, what runs, and what is done to it."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shlex
import shutil
import signal
import socket
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Self, TypedDict, Unpack

from tidemark.cli import CommandError, proxy
from tidemark.cli.proxy import Link
from tidemark.cli.trial.asking import ANSWER_S, ask, ask_front, tell
from tidemark.cli.trial.directory import (
    NEW_STATE_FILE,
    STATE_FILE,
    alone,
    cannot_delete,
    check_room,
    no_room,
    reason,
)
from tidemark.cli.trial.etcd import Etcd, etcd_answers, etcd_program
from tidemark.cli.trial.members import Place, Seen, member_name
from tidemark.cli.trial.processes import HOST, Process, free_ports, is_taken, launch, unbroken
from tidemark.model.wiring import MAIN
from tidemark.runtime import machine

WHOLE_S = 60.0
START_S = 5.0
"""How long one that answers is waited for until it is ready."""
FREE_S = 2.0
"""How long the port of a process that was killed may still be in use."""
WELL = ("active", "ready", "serving")
ETCD, LINKS = "etcd", "links"
"""Names of processes that are no members."""

Mode = Literal["standby", "chain"]


class Choices(TypedDict, total=False):
    """What `Trial.plan` lets one choose."""

    nodes: int
    mode: Mode
    etcd: str
    proxies: bool
    settings: Mapping[str, str] | None
    groups: Mapping[str, Mode] | None
    detached: bool


@dataclass(slots=True)
class Trial:
    """The cluster in a directory. `Trial.create` makes one, `Trial.load` finds it again."""

    directory: Path
    name: str
    mode: Mode
    members: dict[str, Place]
    etcd_address: str
    etcd: Etcd | None
    """None when it is not ours."""
    control: int | None
    """Where the proxies take commands; None without proxies."""
    links: list[Link] = field(default_factory=list)
    settings: dict[str, str] = field(default_factory=dict)
    """Given to every member and front, by key."""
    groups: dict[str, Mode] = field(default_factory=dict)
    """The groups with their modes, main first; empty: there is one, and no front."""
    fronts: dict[str, Place] = field(default_factory=dict)
    processes: dict[str, Process] = field(default_factory=dict)
    detached: bool = True
    abandoned: bool = False
    """Its first start failed: nothing is left of it but logs."""
    started: list[str] = field(default_factory=list)
    """What this call has started."""
    log_starts: dict[str, int] = field(default_factory=dict)
    """Where in their logs those begin."""

    # Made and found --------------------------------------------------------------------------

    @classmethod
    def create(cls, directory: Path, **choices: Unpack[Choices]) -> Self:
        """Choose names and ports and write them down; nothing is started.

        Raises:
            CommandError: the directory cannot be made, or holds something else.
        """
        made = cls.plan(directory, **choices)
        made.write()
        return made

    @classmethod
    def plan(
        cls,
        directory: Path,
        *,
        nodes: int = 3,
        mode: Mode = "standby",
        etcd: str = "",
        proxies: bool = False,
        settings: Mapping[str, str] | None = None,
        groups: Mapping[str, Mode] | None = None,
        detached: bool = True,
    ) -> Self:
        """Choose names and ports, and write nothing. `groups` has main, if there are any."""
        directory = directory.resolve()
        groups = dict(groups or {})
        names = [f"n{number}" for number in range(1, nodes + 1)]
        own_etcd = None if etcd else Etcd.create(directory)
        etcd = own_etcd.address if own_etcd is not None else etcd
        processes = nodes * (len(groups) + 1)
        ports = (
            f"{HOST}:{port}"
            for port in free_ports(3 * processes + (processes * processes if proxies else 0) + 1)
        )
        members = {
            member_name(name, group if groups else ""): Place(next(ports), next(ports), next(ports), group)
            for group in groups or (MAIN,)
            for name in names
        }
        fronts = {name: Place(next(ports), next(ports)) for name in names} if groups else {}
        links: list[Link] = []
        if proxies:
            for one, place in members.items():
                others = [
                    name for name, other in members.items() if other.group == place.group and name != one
                ]
                links += [
                    Link(one, other, _port(next(ports)), _port(members[other].peer)) for other in others
                ]
                links.append(Link(one, ETCD, _port(next(ports)), _port(etcd)))
            links += [
                Link(front, name, _port(next(ports)), _port(place.peer))
                for front in fronts
                for name, place in members.items()
            ]
        return cls(
            directory=directory,
            name=f"trial-{secrets.token_hex(4)}",
            mode=groups.get(MAIN, mode),
            members=members,
            etcd_address=etcd,
            etcd=own_etcd,
            control=_port(next(ports)) if proxies else None,
            links=links,
            settings=dict(settings or {}),
            groups=groups,
            fronts=fronts,
            detached=detached,
        )

    def check(self) -> None:
        """See what can be seen before anything is written.

        Raises:
            CommandError: the directory is no place for a cluster, or there is no etcd.
            ConfigError: a setting cannot be.
        """
        from tidemark import config
        from tidemark.cli.serve import understood

        check_room(self.directory)
        file = os.environ.get("TIDEMARK_CONFIG")
        for name in (*(self.of(group)[0] for group in self.groups or (MAIN,)), *list(self.fronts)[:1]):
            words = self._command(name, {})
            if name in self.fronts:
                groups = ",".join(words[at + 1] for at, word in enumerate(words) if word == "--group")
                at = words.index("--group")
                words = [*words[:at], *words[words.index("--set", at) :], f"--front.groups={groups}"]
            call = understood(words[words.index("tidemark") + 2 :])
            assert call is not None
            # Of a file that is not written yet nobody can say that it is there.
            flags = {key: value for key, value in call.flags.items() if value != str(self.secret_file)}
            config.load(flags, os.environ, Path(file) if file else None)
        if self.etcd is not None:
            etcd_program()
        else:
            for address in self.etcd_address.split(","):
                config.parse_address("--etcd", address)
            self._check_etcd_answers()

    def _check_etcd_answers(self) -> None:
        if not any(map(etcd_answers, self.etcd_address.split(","))):
            raise CommandError(f"no etcd answers at {self.etcd_address}; start it, or leave out --etcd")

    def write(self) -> None:
        """Write it down, in a directory of its own.

        Raises:
            CommandError: the directory cannot be made, or holds something else.
        """
        check_room(self.directory)
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self.save()
            self.secret_file.touch(0o600)
            self.secret_file.write_text(secrets.token_hex(32) + "\n")
        except OSError as problem:
            raise no_room(self.directory, problem) from None

    @classmethod
    def load(cls, directory: Path, *, abandoned: bool = False) -> Self:
        """The trial of a directory. `abandoned`: one whose first start failed will do, too.

        Raises:
            CommandError: there is none.
        """
        file = directory / STATE_FILE
        try:
            found = cls._read(directory.resolve(), json.loads(file.read_text()))
        except (FileNotFoundError, NotADirectoryError):
            raise CommandError(
                f"there is no cluster in {directory}; make one with 'tidemark cluster up', or say where it is with --dir",
                2,
            ) from None
        except OSError as problem:
            raise CommandError(f"cannot read {file}: {reason(problem)}", 2) from None
        except (ValueError, LookupError, TypeError, AttributeError):
            raise CommandError(
                f"{file} is not what 'tidemark cluster up' wrote; choose another --dir", 2
            ) from None
        if found.abandoned and not abandoned:
            raise CommandError(
                f"there is no cluster in {directory}: its first start failed, {directory}/*.log say why; "
                f"make one anew: {found.call('up')}",
                2,
            )
        return found

    @classmethod
    def _read(cls, directory: Path, facts: dict[str, Any]) -> Self:
        ports = facts["etcd_ports"]
        found = cls(
            directory=directory,
            name=facts["name"],
            mode=facts["mode"],
            members={name: Place(**place) for name, place in facts["members"].items()},
            etcd_address=facts["etcd"],
            etcd=Etcd(directory, *ports) if ports else None,
            control=facts["control"],
            links=[Link(**link) for link in facts["links"]],
            settings=facts["settings"],
            groups=facts.get("groups", {}),
            fronts={name: Place(**place) for name, place in facts.get("fronts", {}).items()},
            processes={name: Process(**process) for name, process in facts["processes"].items()},
            abandoned=facts.get("abandoned", False),
        )
        if found.etcd is not None:
            found.etcd.process = found.processes.get(ETCD)
        return found

    def save(self) -> None:
        facts = {
            "name": self.name,
            "mode": self.mode,
            "members": {name: asdict(place) for name, place in self.members.items()},
            "etcd": self.etcd_address,
            "etcd_ports": [self.etcd.client_port, self.etcd.peer_port] if self.etcd is not None else None,
            "control": self.control,
            "links": [asdict(link) for link in self.links],
            "settings": self.settings,
            "groups": self.groups,
            "fronts": {name: asdict(place) for name, place in self.fronts.items()},
            "processes": {name: asdict(process) for name, process in self.processes.items()},
            "abandoned": self.abandoned,
        }
        new = self.directory / NEW_STATE_FILE
        new.write_text(json.dumps(facts, indent=2) + "\n")
        new.replace(self.directory / STATE_FILE)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """While no other call starts or stops anything of this trial; what others have noted until now is known."""
        with alone(self.directory):
            found = self.load(self.directory)
            self.members = found.members | self.members
            self.fronts = found.fronts | self.fronts
            self.processes |= {
                name: process for name, process in found.processes.items() if not self._runs(name)
            }
            yield

    def call(self, words: str) -> str:
        """A command about this trial, to be copied."""
        from tidemark.cli.cluster import DIRECTORY

        usual = Path(os.environ.get("TIDEMARK_TRIAL_DIR") or DIRECTORY)
        if usual.resolve() == self.directory:
            return f"tidemark cluster {words}"
        with contextlib.suppress(ValueError, OSError):
            near = self.directory.relative_to(Path.cwd())
            return f"tidemark cluster {words} --dir {shlex.quote(str(near))}"
        return f"tidemark cluster {words} --dir {shlex.quote(str(self.directory))}"

    @property
    def secret_file(self) -> Path:
        return self.directory / "secret"

    @property
    def addresses(self) -> list[str]:
        """Where AMQP clients may connect: the fronts, if there are any."""
        return [place.amqp for place in (self.fronts or self.members).values()]

    @property
    def names(self) -> list[str]:
        """Of all members, those of a group together, and fronts."""
        return [*(name for group in self.groups or (MAIN,) for name in self.of(group)), *self.fronts]

    @property
    def nodes(self) -> int:
        return len(self.fronts or self.members)

    @property
    def url(self) -> str:
        """For Tidemark's own client: all fronts, or without fronts all members, in one URL."""
        places = self.fronts or self.members
        return f"tidemark://guest:guest@{','.join(place.amqp for place in places.values())}/"

    def of(self, group: str) -> list[str]:
        """The members of a group.

        Raises:
            CommandError: there is no such group.
        """
        found = [name for name, place in self.members.items() if place.group == group]
        if not found:
            raise CommandError(
                f"there is no group {group!r}; there are {', '.join(self.groups or [MAIN])}", 2
            )
        return found

    def data(self, name: str) -> Path:
        return self.directory / name

    def log(self, name: str) -> Path:
        return self.directory / f"{name}.log"

    # Start and stop --------------------------------------------------------------------------

    def up(self) -> None:
        """Start what does not run yet.

        Raises:
            CommandError: etcd is missing or does not answer, something is frozen, or a port is in use.
        """
        if self.frozen:
            raise CommandError(self.thaw_advice())
        missing = [name for name in (ETCD, LINKS, *self.members, *self.fronts) if not self._runs(name)]
        self._check_ports(missing)
        if self.etcd is None:
            self._check_etcd_answers()
        elif not self._runs(ETCD):
            with unbroken():
                self._note(ETCD, self.etcd.launch(detached=self.detached))
            self.etcd.wait_healthy()
        self.start_links()
        for name in (*self.members, *self.fronts):
            if not self._runs(name):
                self._launch(name)

    def undo(self) -> None:
        """Stop what this call has started, and nothing else."""
        with unbroken():
            self._stop([name for name in self.started if self._runs(name)])
            for name in self.started:
                self.processes.pop(name, None)
            if self.started:
                self.save()
            self.started.clear()

    def spread(self) -> None:
        """Have the k-th group be led on the k-th node. Of new members the first one leads; it hands over.

        From member to member: who has handed over becomes the last, so a chain is turned round, and each node has
        another place in it from one group to the next: n2 → n3 → n1, n3 → n1 → n2, n1 → n2 → n3.

        Raises:
            CommandError: a leader does not want to, or takes too long.
        """
        count = self.nodes
        turns = {
            group: (number - 1) % count + 1 if mode == "chain" and number else number % count
            for number, (group, mode) in enumerate(self.groups.items())
        }
        for step in range(count):
            due = {
                group: (self.of(group)[step], self.of(group)[(step + 1) % count])
                for group, turn in turns.items()
                if step < turn and count > 1
            }
            for group, (first, heir) in due.items():
                leader = self.leader(group) or first
                if leader != heir:
                    tell(self.members[leader].admin, "demote", heir)
            for group, (_, heir) in due.items():
                deadline = time.monotonic() + WHOLE_S
                while self.leader(group) != heir:
                    if time.monotonic() > deadline:
                        raise CommandError(f"{heir} does not lead the group {group} after {WHOLE_S:.0f} s")
                    time.sleep(0.05)
            if due:
                self.wait_whole()

    def start_links(self) -> None:
        """Start the proxies, if there are to be any and they do not run."""
        if self.control is not None and not self._runs(LINKS):
            command = [sys.executable, "-m", "tidemark.cli.proxy", *proxy.arguments(self.control, self.links)]
            with unbroken():
                self._note(LINKS, launch(command, self.log(LINKS), detached=self.detached))

    def start(self, name: str, settings: Mapping[str, str] | None = None) -> None:
        """Start a member or front that is down, with other settings than usual if some are given.

        Raises:
            CommandError: it runs, nobody could lead, or a port is in use.
        """
        if name == ETCD and self.etcd is not None:
            raise CommandError(f"etcd is started with all that is missing: {self.call('up')}", 2)
        self.place(name)
        with self.alone():
            if name in self.frozen:
                raise CommandError(f"{name} is frozen: {self.call(f'thaw {name}')}")
            if self._runs(name):
                raise CommandError(f"{name} runs already", 2)
            self._check_ground()
            self._check_ports([name])
            self._launch(name, settings or {})

    def settled(self, name: str) -> Seen:
        """Wait until one that was started is ready, or answers and needs more time.

        Raises:
            CommandError: it has ended, or does not answer.
        """
        began = time.monotonic()
        while True:
            [seen] = self.look([name])
            waited_s = time.monotonic() - began
            if seen.state in (*WELL, "frozen") or (seen.status and waited_s > START_S):
                return seen
            if seen.state == "down":
                raise CommandError(self._ended(name))
            if waited_s > WHOLE_S:
                raise CommandError(f"{name} does not answer after {WHOLE_S:.0f} s; see {self.log(name)}")
            time.sleep(0.05)

    def _check_ground(self) -> None:
        """Raises CommandError: what every member needs does not run."""
        if not self.running and self.etcd is not None:
            raise CommandError(self.advice())
        if self.etcd is not None and not self._runs(ETCD):
            raise CommandError(
                f"etcd does not run, and without it nobody leads; start everything: {self.call('up')}"
            )
        if self.control is not None and not self._runs(LINKS):
            raise CommandError(f"the proxies do not run; start everything: {self.call('up')}")

    def _check_ports(self, names: Iterable[str]) -> None:
        """Raises CommandError: somebody else listens where one of these would."""
        places: list[tuple[str, str]] = []
        for name in names:
            if name == ETCD:
                own = [self.etcd.client_port, self.etcd.peer_port] if self.etcd is not None else []
                places += [(name, f"{HOST}:{port}") for port in own]
            elif name == LINKS:
                places += [(name, f"{HOST}:{self.control}")] if self.control is not None else []
            else:
                place = self.place(name)
                places += [(name, address) for address in (place.amqp, place.admin, place.peer) if address]
        deadline = time.monotonic() + FREE_S
        while taken := [(name, address) for name, address in places if is_taken(address)]:
            if time.monotonic() > deadline:
                name, address = taken[0]
                pid = machine.listening_pid(_port(address))
                who = f"process {pid} ({machine.command_of(pid)})" if pid is not None else "another program"
                raise CommandError(
                    f"{name} cannot listen on {address}, which is in use by {who}; stop that first, or make another "
                    "cluster with --dir: the ports of this one stay as they are"
                )
            time.sleep(0.05)

    def join(self, group: str = "") -> list[str]:
        """Start one more member; of a cluster of groups: of this group, or one of each and a front. Returns their names."""
        if self.links:
            raise CommandError(
                "a cluster with proxies cannot grow: its links are laid; make another one in another --dir, with more "
                "--nodes, or without --proxies",
                2,
            )
        with self.alone():
            self._check_ground()
            return self._join(group)

    def _join(self, group: str) -> list[str]:
        if not self.groups:
            new = {f"n{len(self.members) + 1}": MAIN}
        elif group:
            new = {member_name(f"n{len(self.of(group)) + 1}", group): group}
        else:
            node = f"n{max(len(self.of(each)) for each in self.groups) + 1}"
            new = {member_name(node, each): each for each in self.groups}
        for name in new:
            if self.data(name).exists():
                raise CommandError(
                    f"{self.data(name)} is there already, and not of this cluster; move it away", 2
                )
        ports = (f"{HOST}:{port}" for port in free_ports(3 * len(new) + 2))
        for name, each in new.items():
            self.members[name] = Place(next(ports), next(ports), next(ports), each)
        names = list(new)
        if self.groups and not group:
            self.fronts[node] = Place(next(ports), next(ports))
            names.append(node)
        for name in names:
            self._launch(name)
        return names

    def kill(self, name: str) -> None:
        self._running(name).kill()

    def stop(self, name: str) -> bool:
        """Ask a member to end; whether it did as it was asked."""
        return self._running(name).stop()

    def freeze(self, name: str) -> bool:
        """Whether it was not frozen before."""
        process = self._running(name)
        fresh = process.state != "frozen"
        process.signal(signal.SIGSTOP)
        return fresh

    def thaw(self, name: str) -> bool:
        """Whether it was frozen before."""
        process = self._running(name)
        frozen = process.state == "frozen"
        process.signal(signal.SIGCONT)
        return frozen

    def down(self) -> list[str]:
        """Stop everything, fronts and members first; returns the names of those that had to be killed."""
        stubborn = self._stop(self.running)
        self.processes.clear()
        self.save()
        return stubborn

    def _stop(self, names: list[str]) -> list[str]:
        stubborn = []
        for some in (self.fronts, self.members):
            running = [name for name in some if name in names]
            if running:
                # Who has ended by itself meanwhile has not refused to: the same Ctrl-C may have reached it.
                stops = [self.processes[name].stop for name in running]
                with ThreadPoolExecutor(len(running)) as pool:
                    asked = dict(zip(running, pool.map(lambda stop: stop(), stops), strict=True))
                stubborn += [name for name, obeyed in asked.items() if not obeyed]
        for name in (LINKS, ETCD):
            if name in names:
                self.processes[name].stop()
        return stubborn

    def abandon(self) -> None:
        """Keep nothing but logs, of a trial that never was whole: another one may be made in its place."""
        if not self.is_here:
            return
        self._delete_data()
        self.abandoned = True
        self.save()

    def remove(self) -> bool:
        """Delete what was written here, and the directory unless something else is in it. Returns whether that is gone.

        Raises:
            CommandError: something cannot be deleted.
        """
        if not self.is_here:
            return not self.directory.exists()
        self._delete_data()
        try:
            for name in (*self.members, *self.fronts, LINKS, ETCD):
                self.log(name).unlink(missing_ok=True)
            (self.directory / NEW_STATE_FILE).unlink(missing_ok=True)
            # The last: until here it can be tried again.
            (self.directory / STATE_FILE).unlink(missing_ok=True)
        except OSError as problem:
            raise cannot_delete(problem) from None
        with contextlib.suppress(OSError):
            self.directory.rmdir()
        return not self.directory.exists()

    @property
    def is_here(self) -> bool:
        """Whether its directory still holds it, and no other."""
        try:
            return bool(self.load(self.directory, abandoned=True).name == self.name)
        except CommandError:
            return False

    def _delete_data(self) -> None:
        try:
            for name in (*self.members, *self.fronts, ETCD):
                if self.data(name).is_dir():
                    shutil.rmtree(self.data(name))
            self.secret_file.unlink(missing_ok=True)
        except OSError as problem:
            raise cannot_delete(problem) from None

    def place(self, name: str) -> Place:
        """Where this member or front listens.

        Raises:
            CommandError: there is none of that name.
        """
        found = self.members.get(name) or self.fronts.get(name)
        if found is None:
            raise self._no_member(name)
        return found

    def _no_member(self, name: str, besides: str = "") -> CommandError:
        fronts = f", and the fronts {', '.join(self.fronts)}" if self.fronts else ""
        return CommandError(
            f"there is no member {name!r}; there are {', '.join(self.members)}{fronts}{besides}", 2
        )

    def _running(self, name: str) -> Process:
        if name != ETCD or self.etcd is None:
            self.place(name)
        if not self._runs(name):
            if not self.running:
                raise CommandError(f"{name} is not running: {self.advice()}")
            words = "up" if name == ETCD else f"start {name}"
            raise CommandError(f"{name} is not running; start it: {self.call(words)}")
        return self.processes[name]

    @property
    def running(self) -> list[str]:
        """The names of all processes that there are, frozen ones too."""
        return [name for name in self.processes if self._runs(name)]

    @property
    def serves(self) -> bool:
        """Whether anything runs that takes clients."""
        return any(
            name in self.processes and self.processes[name].state == "running"
            for name in self.fronts or self.members
        )

    @property
    def frozen(self) -> list[str]:
        return [name for name, process in self.processes.items() if process.state == "frozen"]

    def thaw_advice(self) -> str:
        first, *others = self.frozen
        words = f"{', '.join(others)} and {first} are" if others else f"{first} is"
        return f"{words} frozen: {self.call(f'thaw {first}')}"

    def advice(self) -> str:
        """What to do when nobody answers."""
        if not self.running:
            return f"nothing of this cluster runs; start everything: {self.call('up')}"
        if self.frozen:
            return self.thaw_advice()
        if not self.serves:
            return f"nothing runs that takes clients; start what is missing: {self.call('up')}"
        return f"see why: {self.call('status')}"

    def _runs(self, name: str) -> bool:
        process = self.processes.get(name)
        return process is not None and not process.wait_gone(0)

    def _launch(self, name: str, settings: Mapping[str, str] = {}) -> None:
        log = self.log(name)
        self.log_starts[name] = log.stat().st_size if log.exists() else 0
        with unbroken():
            self._note(name, launch(self._command(name, settings), log, detached=self.detached))

    def _note(self, name: str, process: Process) -> None:
        """Write down that it runs."""
        self.processes[name] = process
        self.started.append(name)
        self.save()

    def _command(self, name: str, settings: Mapping[str, str]) -> list[str]:
        chosen = {"cluster.name": self.name, "cluster.secret_file": str(self.secret_file)}
        routes = {link.target: f"{HOST}:{link.listen}" for link in self.links if link.dialler == name}
        command = [sys.executable, "-m", "tidemark"]
        if name in self.fronts:
            command += self._front(name, routes)
        else:
            command += self._member(name, routes, chosen)
        for key, value in (chosen | self.settings | dict(settings)).items():
            command += ["--set", f"{key}={value}"]
        return command

    def _front(self, name: str, routes: Mapping[str, str]) -> list[str]:
        place = self.fronts[name]
        command = ["front", "--name", name, "--amqp", place.amqp, "--admin", place.admin]
        for group in self.groups:
            members = [
                f"{member}@{routes.get(member, self.members[member].peer)}" for member in self.of(group)
            ]
            command += ["--group", f"{group}={','.join(members)}"]
        return command

    def _member(self, name: str, routes: dict[str, str], chosen: dict[str, str]) -> list[str]:
        place = self.members[name]
        chosen |= {
            "cluster.mode": self.groups.get(place.group, self.mode),
            "cluster.etcd": routes.pop(ETCD, self.etcd_address),
            "cluster.size": str(len(self.of(place.group))),
        }
        if self.groups:
            others = ",".join(f"{group}={mode}" for group, mode in self.groups.items() if group != MAIN)
            chosen["cluster.group"] = place.group
            chosen |= {"cluster.groups": others} if place.group == MAIN else {}
        if routes:
            chosen["cluster.peers"] = ",".join(f"{peer}={address}" for peer, address in routes.items())
        command = ["serve", "--name", name, "--data", str(self.data(name))]
        return [*command, "--amqp", place.amqp, "--admin", place.admin, "--peer", place.peer]

    # Links -----------------------------------------------------------------------------------

    def cut(self, one: str, other: str, *, one_way: bool = False) -> dict[str, Any]:
        """Let nothing through from one to the other, and back unless `one_way`; names of members, or etcd."""
        self._check_link(one, other)
        answer = self._order({"do": "cut", "from": one, "to": other})
        return answer if one_way else self._order({"do": "cut", "from": other, "to": one})

    def slow(self, one: str, other: str, ms: int) -> dict[str, Any]:
        """Let everything between two arrive so much later, in both directions."""
        self._check_link(one, other)
        self._order({"do": "slow", "from": one, "to": other, "ms": ms})
        return self._order({"do": "slow", "from": other, "to": one, "ms": ms})

    def heal(self) -> dict[str, Any]:
        """Everything goes through again, at once."""
        return self._order({"do": "heal"})

    def hurt(self) -> dict[str, Any] | None:
        """What is cut and slowed now; None if nobody can say."""
        if self.control is None or not self._runs(LINKS) or LINKS in self.frozen:
            return None
        try:
            return self._answer(self.control, {"do": "look"})
        except (OSError, ValueError):
            return None

    def _check_link(self, one: str, other: str) -> None:
        """Raises CommandError: there is no such link, or no proxy on it."""
        for name in (one, other):
            if name not in (ETCD, *self.members, *self.fronts):
                raise self._no_member(name, f", and {ETCD}")
        if one == other:
            raise CommandError(f"{one} has no link to itself; name two", 2)
        self._proxies()
        if not any({link.dialler, link.target} == {one, other} for link in self.links):
            raise CommandError(f"there is no link between {one} and {other}", 2)

    def _proxies(self) -> int:
        """Where they take commands."""
        if self.control is None:
            raise CommandError(
                "the links of this cluster are direct; start one with 'tidemark cluster up --proxies'", 2
            )
        return self.control

    def _answer(self, control: int, command: dict[str, Any]) -> dict[str, Any]:
        with socket.create_connection((HOST, control), ANSWER_S) as connection:
            connection.sendall(json.dumps(command).encode() + b"\n")
            with connection.makefile("rb") as answer:
                found: dict[str, Any] = json.loads(answer.readline())
                return found

    def _order(self, command: dict[str, Any]) -> dict[str, Any]:
        control = self._proxies()
        if not self._runs(LINKS):
            raise CommandError(f"the proxies do not run; start everything: {self.call('up')}")
        deadline = time.monotonic() + 5
        while True:
            try:
                return self._answer(control, command)
            except (OSError, ValueError):  # it may be starting
                if time.monotonic() > deadline:
                    raise CommandError(f"the proxies do not answer; see {self.log(LINKS)}") from None
                time.sleep(0.05)

    # Looking ---------------------------------------------------------------------------------

    def look(self, names: Iterable[str] | None = None) -> list[Seen]:
        """How the members, those of a group together, and then the fronts are, all asked at the same moment."""
        wanted = list(names) if names is not None else self.names
        with ThreadPoolExecutor(len(wanted)) as pool:
            seen = list(pool.map(self._see, wanted))
        for group in self.groups or (MAIN,):
            mine = [one for one in seen if not one.is_front and one.place.group == group]
            leaders = [one for one in mine if one.state == "active"]
            if len(leaders) == 1:
                counted = leaders[0].status.get("ready", [])
                for one in mine:
                    one.left_out = one.state == "ready" and one.name not in counted
        return seen

    def _see(self, name: str) -> Seen:
        place = self.place(name)
        process = self.processes.get(name)
        state = process.state if process is not None else "gone"
        status = (ask if place.peer else ask_front)(place.admin) if state == "running" else {}
        pid = process.pid if process is not None and state != "gone" else None
        return Seen(name, place, pid, state, status)

    def leader(self, group: str = MAIN) -> str | None:
        """The member of a group that says it leads and confirms, if there is exactly one."""
        leaders = [seen.name for seen in self.look(self.of(group)) if seen.state == "active"]
        return leaders[0] if len(leaders) == 1 else None

    def wait_whole(self, timeout_s: float = WHOLE_S, names: Iterable[str] | None = None) -> list[Seen]:
        """Wait until one member of each group leads, all others are ready, and fronts serve.

        Raises:
            CommandError: one ended, or it takes too long; it says how far they are.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            seen = self.look(names)
            if all(one.state in WELL for one in seen) and self._led(seen):
                return seen
            down = [one.name for one in seen if one.state == "down"]
            if down:
                raise CommandError(self._ended(down[0]))
            if time.monotonic() > deadline:
                words = "; ".join(
                    f"{one.name} is {one.state}: {one.status.get('why', '')}".rstrip(": ") for one in seen
                )
                advice = self.thaw_advice() if self.frozen else f"see {self.directory}/*.log"
                raise CommandError(f"not all are ready after {timeout_s:.0f} s: {words}. {advice}")
            time.sleep(0.05)

    @staticmethod
    def _led(seen: list[Seen]) -> bool:
        """Whether one member leads in each group that some of these are in."""
        members = [one for one in seen if not one.is_front]
        leaders = [one.place.group for one in members if one.state == "active"]
        return sorted(leaders) == sorted({one.place.group for one in members})

    def _ended(self, name: str) -> str:
        return f"{name} has ended; see {self.log(name)}:\n{self.last_words(name)}"

    def last_words(self, name: str, count: int = 5) -> str:
        """The end of its log, as far as it is of the process that this call has started."""
        try:
            text = self.log(name).read_bytes()[self.log_starts.get(name, 0) :].decode(errors="replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-count:])


def _port(address: str) -> int:
    """Of one address; the proxies pass on to one etcd."""
    return int(address.split(",")[0].rpartition(":")[2])
