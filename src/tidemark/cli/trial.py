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

from __future__ import annotations

import base64
import contextlib
import errno
import fcntl
import http.client
import json
import os
import random
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

import tidemark
from tidemark.cli import CommandError, proxy
from tidemark.cli.api import Api, path
from tidemark.cli.connection import FIRST_PASSWORD, FIRST_USER
from tidemark.cli.proxy import Link
from tidemark.model.wiring import MAIN
from tidemark.runtime import machine

HOST = "127.0.0.1"
STATE_FILE = "cluster.json"
NEW_STATE_FILE = STATE_FILE + ".new"
PORTS = range(20_000, 32_000)
ANSWER_S = 1.0
STOP_S = 20.0
ETCD_READY_S = 15.0
WHOLE_S = 60.0
START_S = 5.0
"""How long one that answers is waited for until it is ready."""
FREE_S = 2.0
"""How long the port of a process that was killed may still be in use."""
WELL = ("active", "ready", "serving")
ALONE_S = 5.0
"""How long a call waits for another one that starts or stops things."""
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
ETCD, LINKS = "etcd", "links"
"""Names of processes that are no members."""
MISSING_ETCD = (
    "there is no program 'etcd', which decides who leads; install it (Debian and Ubuntu: apt-get install etcd-server), "
    "or give --etcd HOST:PORT of one that runs"
)

Mode = Literal["standby", "chain"]


# Processes ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Process:
    """A process that was started for a trial, perhaps by another call."""

    pid: int
    born: int
    """When it was started, as the system counts; 0 where that is not known."""

    @property
    def state(self) -> Literal["running", "frozen", "gone"]:
        letter, born = _look(self.pid)
        if letter in "ZX" or born != self.born:
            return "gone"
        return "frozen" if letter in "Tt" else "running"

    def signal(self, number: signal.Signals) -> None:
        if self.state != "gone":
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def wait_gone(self, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while True:
            # Our own child leaves a corpse until somebody looks at it.
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.pid, os.WNOHANG)
            if self.state == "gone":
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(0.005)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.wait_gone(STOP_S)

    def stop(self) -> bool:
        """Ask it to end, insist if it does not; whether it did as it was asked."""
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        if self.wait_gone(STOP_S):
            return True
        self.kill()
        return False


def _look(pid: int) -> tuple[str, int]:
    """State letter and start time of a process; X if there is none."""
    try:
        facts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        if Path("/proc/self/stat").exists():
            return "X", 0
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return "X", 0
        return "R", 0
    return facts[0], int(facts[19])


def launch(command: list[str], log: Path, *, detached: bool) -> Process:
    """Start a process whose output goes to a file. `detached`: it stays when we end."""
    source = str(Path(tidemark.__file__).parents[1])
    paths = [source, *filter(None, [os.environ.get("PYTHONPATH")])]
    with log.open("ab") as output:
        started = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
            start_new_session=detached,
        )
    _, born = _look(started.pid)
    started.returncode = 0  # `Process` looks after it from here on
    return Process(started.pid, born)


@contextlib.contextmanager
def unbroken() -> Iterator[None]:
    """Signals that end us wait until this is done."""
    if threading.current_thread() is not threading.main_thread():  # nobody is interrupted there
        yield
        return
    came: list[int] = []
    handled = [number for number in ENDING if signal.getsignal(number) not in (signal.SIG_IGN, None)]
    before = {number: signal.signal(number, lambda one, _: came.append(one)) for number in handled}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for one in came[:1]:
            signal.raise_signal(signal.Signals(one))


_given: set[int] = set()
"""Ports that were found free: whoever they are for may not listen there yet when others are looked for."""


def free_ports(count: int) -> list[int]:
    """Ports that nobody uses now, that were given to nobody else here, and that the system gives to no outgoing
    connection later."""
    found: list[int] = []
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        if port in _given:
            continue
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            _given.update(found)
            return found
    raise CommandError(f"there are not {count} free ports from {PORTS[0]} to {PORTS[-1]}")


# etcd --------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Etcd:
    """One real etcd with its data in a directory; it can be killed and started again on the same port."""

    directory: Path
    client_port: int
    peer_port: int
    process: Process | None = None

    @classmethod
    def create(cls, directory: Path) -> Self:
        client_port, peer_port = free_ports(2)
        return cls(directory, client_port, peer_port)

    @property
    def address(self) -> str:
        return f"{HOST}:{self.client_port}"

    def start(self, *, detached: bool = False) -> Self:
        """Start it and wait until it answers.

        Raises:
            CommandError: there is no such program, or it does not start; its log says why.
        """
        self.launch(detached=detached)
        self.wait_healthy()
        return self

    def launch(self, *, detached: bool = False) -> Process:
        """Start it, without waiting.

        Raises:
            CommandError: there is no such program.
        """
        program = etcd_program()
        clients, peers = f"http://{self.address}", f"http://{HOST}:{self.peer_port}"
        self.directory.mkdir(parents=True, exist_ok=True)
        # etcd makes its data directory itself, for nobody else to read.
        command = [program, "--name", "trial", "--data-dir", str(self.directory / "etcd")]
        command += ["--listen-client-urls", clients, "--advertise-client-urls", clients]
        command += ["--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers]
        command += ["--initial-cluster", f"trial={peers}", "--logger", "zap", "--log-level", "warn"]
        command += ["--heartbeat-interval", "50", "--election-timeout", "250"]
        self.process = launch(command, self.log, detached=detached)
        return self.process

    def wait_healthy(self) -> None:
        """Wait until it answers.

        Raises:
            CommandError: it does not; its log says why.
        """
        assert self.process is not None
        deadline = time.monotonic() + ETCD_READY_S
        while not self.healthy():
            if self.process.wait_gone(0) or time.monotonic() > deadline:
                self.process.kill()
                raise CommandError(f"etcd does not start; see {self.log}")
            time.sleep(0.02)

    @property
    def log(self) -> Path:
        return self.directory / "etcd.log"

    def healthy(self) -> bool:
        return etcd_answers(self.address)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()

    def stop(self) -> None:
        if self.process is not None:
            self.process.stop()


def etcd_program() -> str:
    """Raises CommandError: there is none."""
    program = shutil.which("etcd")
    if program is None:
        raise CommandError(MISSING_ETCD)
    return program


def etcd_answers(address: str) -> bool:
    """Whether the etcd at this address can decide things now."""
    try:
        status, text = _get(address, "/health", {})
    except OSError:
        return False
    return status == 200 and b'"true"' in text


def _get(address: str, path: str, headers: Mapping[str, str]) -> tuple[int, bytes]:
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=ANSWER_S)
    try:
        connection.request("GET", path, headers=dict(headers))
        answer = connection.getresponse()
        return answer.status, answer.read()
    except http.client.HTTPException as problem:
        raise OSError(str(problem)) from None
    finally:
        connection.close()


# Members -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Place:
    """Where a member listens."""

    amqp: str
    admin: str
    peer: str = ""
    """Empty: it is a front."""
    group: str = MAIN


@dataclass(slots=True)
class Seen:
    """A member or a front as it is now: what the system says of its process, and what it says of itself."""

    name: str
    place: Place
    pid: int | None
    process: Literal["running", "frozen", "gone"]
    status: dict[str, Any]
    """Empty when it does not answer."""
    left_out: bool = False
    """It says that it is ready, but has not heard yet that the leader went on without it."""

    @property
    def state(self) -> str:
        """Its own word for it; of one that does not answer, why."""
        if self.left_out:
            return "left out"
        if self.process == "gone":
            return "down"
        if self.process == "frozen":
            return "frozen"
        return str(self.status.get("state", "silent"))

    @property
    def is_front(self) -> bool:
        return not self.place.peer

    def end(self, what: str = "durable") -> int | None:
        """How far its journal goes."""
        ends = self.status.get(what)
        return int(ends["journal"]) if isinstance(ends, dict) and "journal" in ends else None


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
    def create(
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
        """Choose names and ports and write them down; nothing is started. `groups` has main, if there are any.

        Raises:
            CommandError: the directory cannot be made, or holds something else.
        """
        made = cls.plan(
            directory,
            nodes=nodes,
            mode=mode,
            etcd=etcd,
            proxies=proxies,
            settings=settings,
            groups=groups,
            detached=detached,
        )
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
        """Choose names and ports, and write nothing."""
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
            raise _no_room(self.directory, problem) from None

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
            raise CommandError(f"cannot read {file}: {_reason(problem)}", 2) from None
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
        while taken := [(name, address) for name, address in places if _taken(address)]:
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
                with ThreadPoolExecutor(len(running)) as pool:
                    asked = dict(zip(running, pool.map(self.stop, running), strict=True))
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
            raise _cannot_delete(problem) from None
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
            raise _cannot_delete(problem) from None

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


def _taken(address: str) -> bool:
    """Whether somebody listens there."""
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, int(port)))
        except OSError as problem:
            return problem.errno == errno.EADDRINUSE
        return False


# Directories -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def alone(directory: Path) -> Iterator[None]:
    """While no other call starts or stops anything in this directory.

    Raises:
        CommandError: another one is at it, or there is no such directory.
    """
    try:
        place = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as problem:
        raise _no_room(directory, problem) from None
    try:
        deadline = time.monotonic() + ALONE_S
        while True:
            try:
                fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise CommandError(
                        f"another 'tidemark cluster' starts or stops something in {directory}; wait until it has ended"
                    ) from None
            time.sleep(0.05)
        yield
    finally:
        os.close(place)


def holds_cluster(directory: Path) -> bool:
    """Raises CommandError: nobody can look."""
    try:
        return (directory / STATE_FILE).exists()
    except OSError as problem:
        raise _no_room(directory, problem) from None


def check_room(directory: Path) -> None:
    """Raises CommandError: a cluster cannot be made there, because something else is."""
    try:
        if directory.is_dir():
            held = sorted(one.name for one in directory.iterdir())
            if held:
                raise CommandError(
                    f"{directory} is not empty and holds no cluster ({held[0]}{', …' if held[1:] else ''}); "
                    "choose a new or empty directory with --dir",
                    2,
                )
        elif directory.exists():
            raise CommandError(f"{directory} is no directory; choose another --dir", 2)
    except OSError as problem:
        raise _no_room(directory, problem) from None


def _no_room(directory: Path, problem: OSError) -> CommandError:
    return CommandError(f"cannot use {directory}: {_reason(problem)}; choose another --dir", 2)


def _cannot_delete(problem: OSError) -> CommandError:
    return CommandError(f"cannot delete {problem.filename}: {_reason(problem)}")


def _reason(problem: OSError) -> str:
    return (problem.strerror or str(problem)).lower()


LOGIN = {"Authorization": f"Basic {base64.b64encode(b'guest:guest').decode()}"}


def ask(admin: str) -> dict[str, Any]:
    """What a member says of itself; nothing if it does not answer."""
    return _asked(admin, "/api/tidemark/cluster", LOGIN)


def ask_front(admin: str) -> dict[str, Any]:
    """What a front says of itself; nothing if it does not answer."""
    return _asked(admin, "/api/front", {})


def _asked(admin: str, path: str, headers: Mapping[str, str]) -> dict[str, Any]:
    try:
        status, text = _get(admin, path, headers)
        found = json.loads(text)
    except (OSError, ValueError):
        return {}
    return found if status == 200 and isinstance(found, dict) else {}


def tell(admin: str, command: str, member: str) -> None:
    """Have a member do something, as 'tidemark ctl member' does.

    Raises:
        CommandError: it does not want to, or does not answer.
    """
    api = Api(f"http://{admin}", FIRST_USER, FIRST_PASSWORD)
    api.post(path("tidemark", "cluster", command), {"member": member})


def member_name(node: str, group: str) -> str:
    """The name of a member on a node; of a cluster of one group it is the node's."""
    return f"{group}-{node}" if group else node


def _port(address: str) -> int:
    """Of one address; the proxies pass on to one etcd."""
    return int(address.split(",")[0].rpartition(":")[2])
