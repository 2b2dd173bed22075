"""A cluster on this machine, to try things with: an etcd, some brokers, and proxies on their links if wanted.

A trial lives in a directory: `cluster.json` says what belongs to it and which processes run, each member has its
data and its log beside it. Whoever loads the directory can kill, freeze and start members; nobody has to stay.
Ports are chosen once, outside the range that the system gives to outgoing connections, so that a member which
starts again finds its own free.

Invariant: a process is only ever signalled while its start time is the one that was noted when it was started.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

import tidemark
from tidemark.cli import CommandError, proxy
from tidemark.cli.proxy import Link

HOST = "127.0.0.1"
STATE_FILE = "cluster.json"
PORTS = range(20_000, 32_000)
ANSWER_S = 1.0
STOP_S = 20.0
ETCD_READY_S = 15.0
WHOLE_S = 60.0
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


def free_ports(count: int) -> list[int]:
    """Ports that nobody uses now, and that the system gives to no outgoing connection later."""
    found: list[int] = []
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
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
        program = shutil.which("etcd")
        if program is None:
            raise CommandError(MISSING_ETCD)
        clients, peers = f"http://{self.address}", f"http://{HOST}:{self.peer_port}"
        log = self.directory / "etcd.log"
        self.directory.mkdir(parents=True, exist_ok=True)
        # etcd makes its data directory itself, for nobody else to read.
        command = [program, "--name", "trial", "--data-dir", str(self.directory / "etcd")]
        command += ["--listen-client-urls", clients, "--advertise-client-urls", clients]
        command += ["--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers]
        command += ["--initial-cluster", f"trial={peers}", "--logger", "zap", "--log-level", "warn"]
        command += ["--heartbeat-interval", "50", "--election-timeout", "250"]
        self.process = launch(command, log, detached=detached)
        deadline = time.monotonic() + ETCD_READY_S
        while not self.healthy():
            if self.process.wait_gone(0) or time.monotonic() > deadline:
                self.process.kill()
                raise CommandError(f"etcd does not start; see {log}")
            time.sleep(0.02)
        return self

    def healthy(self) -> bool:
        return etcd_answers(self.address)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()

    def stop(self) -> None:
        if self.process is not None:
            self.process.stop()


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
    peer: str


@dataclass(slots=True)
class Seen:
    """A member as it is now: what the system says of its process, and what it says of itself."""

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
    """Given to every member, by key."""
    processes: dict[str, Process] = field(default_factory=dict)
    detached: bool = True

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
        detached: bool = True,
    ) -> Self:
        """Choose names and ports and write them down; nothing is started."""
        directory = directory.resolve()
        directory.mkdir(parents=True, exist_ok=True)
        names = [f"n{number}" for number in range(1, nodes + 1)]
        own_etcd = None if etcd else Etcd.create(directory)
        etcd = own_etcd.address if own_etcd is not None else etcd
        ports = iter(free_ports(3 * nodes + nodes * nodes + 1))
        members = {name: Place(*(f"{HOST}:{next(ports)}" for _ in range(3))) for name in names}
        links: list[Link] = []
        if proxies:
            targets = {name: _port(place.peer) for name, place in members.items()} | {ETCD: _port(etcd)}
            pairs = [(one, other) for one in names for other in targets if one != other]
            links = [Link(one, other, next(ports), targets[other]) for one, other in pairs]
        made = cls(
            directory=directory,
            name=f"trial-{secrets.token_hex(4)}",
            mode=mode,
            members=members,
            etcd_address=etcd,
            etcd=own_etcd,
            control=next(ports) if proxies else None,
            links=links,
            settings=dict(settings or {}),
            detached=detached,
        )
        made.secret_file.touch(0o600)
        made.secret_file.write_text(secrets.token_hex(32) + "\n")
        made.save()
        return made

    @classmethod
    def load(cls, directory: Path) -> Self:
        """The trial of a directory.

        Raises:
            CommandError: there is none.
        """
        file = directory / STATE_FILE
        try:
            facts = json.loads(file.read_text())
        except FileNotFoundError:
            raise CommandError(
                f"there is no cluster in {directory}; make one with 'tidemark cluster up', or say where it is with --dir",
                2,
            ) from None
        except ValueError:
            raise CommandError(
                f"{file} is not what 'tidemark cluster up' wrote; remove {directory}"
            ) from None
        directory = directory.resolve()
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
            processes={name: Process(**process) for name, process in facts["processes"].items()},
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
            "processes": {name: asdict(process) for name, process in self.processes.items()},
        }
        new = self.directory / (STATE_FILE + ".new")
        new.write_text(json.dumps(facts, indent=2) + "\n")
        new.replace(self.directory / STATE_FILE)

    @property
    def secret_file(self) -> Path:
        return self.directory / "secret"

    @property
    def addresses(self) -> list[str]:
        """Where AMQP clients may connect."""
        return [place.amqp for place in self.members.values()]

    @property
    def url(self) -> str:
        """For Tidemark's own client: all members in one URL."""
        return f"tidemark://guest:guest@{','.join(self.addresses)}/"

    def data(self, name: str) -> Path:
        return self.directory / name

    def log(self, name: str) -> Path:
        return self.directory / f"{name}.log"

    # Start and stop --------------------------------------------------------------------------

    def up(self) -> None:
        """Start what does not run yet.

        Raises:
            CommandError: etcd is missing or does not answer.
        """
        if self.etcd is not None and not self._runs(ETCD):
            self.etcd.start(detached=self.detached)
            assert self.etcd.process is not None
            self.processes[ETCD] = self.etcd.process
        elif self.etcd is None and not any(map(etcd_answers, self.etcd_address.split(","))):
            raise CommandError(f"no etcd answers at {self.etcd_address}; start it, or leave out --etcd")
        self.start_links()
        for name in self.members:
            if not self._runs(name):
                self._launch(name)
        self.save()

    def start_links(self) -> None:
        """Start the proxies, if there are to be any and they do not run."""
        if self.control is not None and not self._runs(LINKS):
            command = [sys.executable, "-m", "tidemark.cli.proxy", *proxy.arguments(self.control, self.links)]
            self.processes[LINKS] = launch(command, self.log(LINKS), detached=self.detached)

    def start(self, name: str, settings: Mapping[str, str] | None = None) -> None:
        """Start a member that is down, with other settings than usual if some are given."""
        self.member(name)
        if self._runs(name):
            raise CommandError(f"{name} runs already", 2)
        self._launch(name, settings or {})
        self.save()

    def join(self) -> str:
        """Start one more member; returns its name."""
        if self.links:
            raise CommandError("a cluster with proxies cannot grow: its links are laid", 2)
        name = f"n{len(self.members) + 1}"
        self.members[name] = Place(*(f"{HOST}:{port}" for port in free_ports(3)))
        self._launch(name)
        self.save()
        return name

    def kill(self, name: str) -> None:
        self._running(name).kill()

    def stop(self, name: str) -> bool:
        """Ask a member to end; whether it did as it was asked."""
        return self._running(name).stop()

    def freeze(self, name: str) -> None:
        self._running(name).signal(signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        self._running(name).signal(signal.SIGCONT)

    def down(self) -> list[str]:
        """Stop everything, members first; returns the names of those that had to be killed."""
        members = [name for name in self.members if self._runs(name)]
        stubborn = []
        if members:
            with ThreadPoolExecutor(len(members)) as pool:
                asked = dict(zip(members, pool.map(self.stop, members), strict=True))
            stubborn = [name for name, obeyed in asked.items() if not obeyed]
        for name in (LINKS, ETCD):
            if self._runs(name):
                self.processes[name].stop()
        self.processes.clear()
        self.save()
        return stubborn

    def member(self, name: str) -> Place:
        """Where this member listens.

        Raises:
            CommandError: there is no such member.
        """
        if name not in self.members:
            raise CommandError(f"there is no member {name!r}; there are {', '.join(self.members)}", 2)
        return self.members[name]

    def _running(self, name: str) -> Process:
        if name != ETCD or self.etcd is None:
            self.member(name)
        if not self._runs(name):
            raise CommandError(f"{name} is not running; start it with 'tidemark cluster start {name}'")
        return self.processes[name]

    def _runs(self, name: str) -> bool:
        process = self.processes.get(name)
        return process is not None and not process.wait_gone(0)

    def _launch(self, name: str, settings: Mapping[str, str] = {}) -> None:
        place = self.members[name]
        routes = {link.target: f"{HOST}:{link.listen}" for link in self.links if link.dialler == name}
        chosen = {
            "cluster.name": self.name,
            "cluster.mode": self.mode,
            "cluster.etcd": routes.pop(ETCD, self.etcd_address),
            "cluster.size": str(len(self.members)),
            "cluster.secret_file": str(self.secret_file),
        }
        if routes:
            chosen["cluster.peers"] = ",".join(f"{peer}={address}" for peer, address in routes.items())
        command = [sys.executable, "-m", "tidemark", "serve", "--name", name, "--data", str(self.data(name))]
        command += ["--amqp", place.amqp, "--admin", place.admin, "--peer", place.peer]
        for key, value in (chosen | self.settings | dict(settings)).items():
            command += ["--set", f"{key}={value}"]
        self.processes[name] = launch(command, self.log(name), detached=self.detached)

    # Links -----------------------------------------------------------------------------------

    def cut(self, one: str, other: str, *, one_way: bool = False) -> dict[str, Any]:
        """Let nothing through from one to the other, and back unless `one_way`; names of members, or etcd."""
        answer = self._order({"do": "cut", "from": self._end(one), "to": self._end(other)})
        return answer if one_way else self._order({"do": "cut", "from": other, "to": one})

    def slow(self, one: str, other: str, ms: int) -> dict[str, Any]:
        """Let everything between two arrive so much later, in both directions."""
        self._order({"do": "slow", "from": self._end(one), "to": self._end(other), "ms": ms})
        return self._order({"do": "slow", "from": other, "to": one, "ms": ms})

    def heal(self) -> dict[str, Any]:
        """Everything goes through again, at once."""
        return self._order({"do": "heal"})

    def _end(self, name: str) -> str:
        if name != ETCD:
            self.member(name)
        return name

    def _order(self, command: dict[str, Any]) -> dict[str, Any]:
        if self.control is None:
            raise CommandError(
                "the links of this cluster are direct; start one with 'tidemark cluster up --proxies'", 2
            )
        deadline = time.monotonic() + 5
        while True:
            try:
                with socket.create_connection((HOST, self.control), 5) as connection:
                    connection.sendall(json.dumps(command).encode() + b"\n")
                    with connection.makefile("rb") as answer:
                        found: dict[str, Any] = json.loads(answer.readline())
                        return found
            except OSError:  # it may be starting
                if time.monotonic() > deadline:
                    raise CommandError(f"the proxies do not answer; see {self.log(LINKS)}") from None
                time.sleep(0.05)

    # Looking ---------------------------------------------------------------------------------

    def look(self, names: Iterable[str] | None = None) -> list[Seen]:
        """How the members are, all asked at the same moment."""
        wanted = list(self.members if names is None else names)
        with ThreadPoolExecutor(len(wanted)) as pool:
            seen = list(pool.map(self._see, wanted))
        leaders = [one for one in seen if one.state == "active"]
        if len(leaders) == 1:
            counted = leaders[0].status.get("ready", [])
            for one in seen:
                one.left_out = one.state == "ready" and one.name not in counted
        return seen

    def _see(self, name: str) -> Seen:
        place = self.members[name]
        process = self.processes.get(name)
        state = process.state if process is not None else "gone"
        status = ask(place.admin) if state == "running" else {}
        pid = process.pid if process is not None and state != "gone" else None
        return Seen(name, place, pid, state, status)

    def leader(self) -> str | None:
        """The member that says it leads and confirms, if there is exactly one."""
        leaders = [seen.name for seen in self.look() if seen.state == "active"]
        return leaders[0] if len(leaders) == 1 else None

    def wait_whole(self, timeout_s: float = WHOLE_S, names: Iterable[str] | None = None) -> list[Seen]:
        """Wait until one member leads and all others are ready.

        Raises:
            CommandError: one ended, or it takes too long; it says how far they are.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            seen = self.look(names)
            states = [one.state for one in seen]
            if states.count("active") == 1 and states.count("ready") == len(states) - 1:
                return seen
            down = [one.name for one in seen if one.state == "down"]
            if down:
                raise CommandError(
                    f"{down[0]} has ended; see {self.log(down[0])}:\n{self.last_words(down[0])}"
                )
            if time.monotonic() > deadline:
                words = ", ".join(
                    f"{one.name} is {one.state} {one.status.get('why', '')}".strip() for one in seen
                )
                raise CommandError(
                    f"not all are ready after {timeout_s:.0f} s: {words}; see {self.directory}/*.log"
                )
            time.sleep(0.05)

    def last_words(self, name: str, count: int = 5) -> str:
        try:
            return "\n".join(self.log(name).read_text(errors="replace").splitlines()[-count:])
        except OSError:
            return ""


def ask(admin: str) -> dict[str, Any]:
    """What a member says of itself; nothing if it does not answer."""
    login = base64.b64encode(b"guest:guest").decode()
    try:
        status, text = _get(admin, "/api/tidemark/cluster", {"Authorization": f"Basic {login}"})
        found = json.loads(text)
    except (OSError, ValueError):
        return {}
    return found if status == 200 and isinstance(found, dict) else {}


def _port(address: str) -> int:
    """Of one address; the proxies pass on to one etcd."""
    return int(address.split(",")[0].rpartition(":")[2])
