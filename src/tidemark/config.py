"""All settings of one broker: where they come from, which one wins, what they are now.

A setting is declared once, in the dataclass of the package that uses it; `SECTIONS` names the dataclasses. A
value may come from a flag (`--store.segment-bytes 8MiB` or `--set store.segment_bytes=8MiB`), the environment
(`TIDEMARK_STORE_SEGMENT_BYTES`), a TOML file (`[store] segment_bytes = "8MiB"`) or the declaration. The first
of these that has it wins. `load` checks everything before anything starts.

Invariant: `origins` has every key, and says which source its value came from.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tidemark.broker.config import BrokerConfig
from tidemark.cluster.config import ClusterConfig
from tidemark.errors import ConfigError
from tidemark.frontend.amqp091.config import Amqp091Config
from tidemark.frontend.stream.config import StreamConfig
from tidemark.model import settings
from tidemark.model.settings import Setting, setting
from tidemark.router.config import FrontConfig
from tidemark.store.config import StoreConfig

GiB = 1 << 30
COMMAND_VARIABLES = frozenset(
    {
        "TIDEMARK_AMQP_URL",
        "TIDEMARK_CA_FILE",
        "TIDEMARK_CONFIG",
        "TIDEMARK_PASSWORD",
        "TIDEMARK_PASSWORD_FILE",
        "TIDEMARK_STREAM_URL",
        "TIDEMARK_TRIAL_DIR",
        "TIDEMARK_URL",
        "TIDEMARK_USER",
        "TIDEMARK_VHOST",
    }
)
"""All variables that options of commands read. They are no settings, whatever they begin with."""


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(key: str, text: str) -> Address:
    """`HOST:PORT` or `[HOST]:PORT`; port 0 is any free one.

    Raises:
        ConfigError: it is neither.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535 or not host:
        raise ConfigError(key=key, problem=f"must be HOST:PORT with a port of 0 to 65535, not {text!r}")
    return Address(host.removeprefix("[").removesuffix("]"), int(port))


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    name: str = setting("tidemark", "Name of this broker, in its ready line and to clients.")
    data: Path = setting(Path("tidemark-data"), "Directory of the journal and the catalog.")

    def __post_init__(self) -> None:
        if not self.name or not self.name.isprintable() or " " in self.name:
            raise ConfigError(key="node.name", problem=f"must be a word, not {self.name!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenConfig:
    amqp: str = setting("127.0.0.1:5672", "Where AMQP clients connect, HOST:PORT. Empty is nowhere.")
    amqps: str = setting("", "Where AMQP clients connect with TLS, HOST:PORT. Empty is nowhere.")
    admin: str = setting("127.0.0.1:15672", "Where the management API listens, HOST:PORT. Empty is nowhere.")
    admins: str = setting("", "Where the management API listens with TLS, HOST:PORT. Empty is nowhere.")
    peer: str = setting("", "Where other members of the cluster connect, HOST:PORT.")
    backlog: int = setting(1024, "Connections that may wait to be accepted.")

    def __post_init__(self) -> None:
        for name in ("amqp", "amqps", "admin", "admins", "peer"):
            if getattr(self, name):
                parse_address(f"listen.{name}", getattr(self, name))
        if self.backlog < 1:
            raise ConfigError(key="listen.backlog", problem="must be at least 1")
        if not self.amqp and not self.amqps:
            raise ConfigError(key="listen.amqp", problem="must not be empty when listen.amqps is empty too")


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    certificate: Path | None = setting(None, "PEM file with the server's certificate and its chain.")
    key: Path | None = setting(
        None, "PEM file with the certificate's private key, if it is not in the same file."
    )
    authorities: Path | None = setting(None, "PEM file with the authorities that sign clients' certificates.")
    clients: Literal["ignore", "ask", "require"] = setting(
        "ignore", "Whether clients are asked for a certificate; its common name is the user of EXTERNAL."
    )

    def __post_init__(self) -> None:
        if self.clients != "ignore" and self.authorities is None:
            raise ConfigError(
                key="tls.authorities", problem=f"is needed when tls.clients is {self.clients!r}"
            )
        for name in ("certificate", "key", "authorities"):
            path = getattr(self, name)
            if path is not None and not path.is_file():
                raise ConfigError(key=f"tls.{name}", problem=f"there is no file {path}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    level: Literal["debug", "info", "warning", "error"] = setting("info", "The least that is logged.")
    format: Literal["text", "json"] = setting("text", "A line for people or an object for machines.")


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsConfig:
    memory_high: float = setting(0.6, "Share of the machine's memory above which publishers wait.")
    memory_high_bytes: int = setting(0, "The same in bytes; 0 leaves it to limits.memory_high.")
    disk_free_bytes_min: int = setting(1 * GiB, "Free disk space below which publishers wait.")
    connections_max: int = setting(50_000, "Connections at a time; one more is closed at once.")
    connections_per_s_max: int = setting(
        0, "Connections that are taken in a second; more are closed at once. 0 is no limit."
    )
    address_connections_per_s_max: int = setting(0, "The same, from one address.")
    login_failures_max: int = setting(
        10,
        "Failed logins of one user from one address that are free; then each next try waits, longer every time. "
        "An address for all users, and a user from all addresses, have ten times as many. 0 is no limit.",
    )
    login_wait_s_max: int = setting(60, "The longest wait between two tries to log in.")
    write_buffer_bytes: int = setting(
        256 * 1024, "What the system may hold unsent of a connection before we wait."
    )

    def __post_init__(self) -> None:
        if not 0 < self.memory_high <= 1:
            raise ConfigError(key="limits.memory_high", problem="must be above 0 and at most 1")
        for name in (
            "memory_high_bytes",
            "disk_free_bytes_min",
            "connections_per_s_max",
            "address_connections_per_s_max",
            "login_failures_max",
        ):
            if getattr(self, name) < 0:
                raise ConfigError(key=f"limits.{name}", problem="must not be negative")
        for name in ("connections_max", "write_buffer_bytes", "login_wait_s_max"):
            if getattr(self, name) < 1:
                raise ConfigError(key=f"limits.{name}", problem="must be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminConfig:
    login_s: int = setting(8 * 3600, "How long a token of a login at the management API is good for.")
    metrics: Literal["login", "totals", "open"] = setting(
        "login",
        "Who may read /metrics: users with the tag monitoring; sums for anybody; everything for anybody.",
    )
    audit: bool = setting(True, "Whether changes made through the management API are kept in audit.jsonl.")
    audit_bytes_max: int = setting(16 << 20, "Size at which audit.jsonl is put aside and begun anew.")
    audit_files_max: int = setting(8, "How many audit files are kept beside the one that is written.")

    def __post_init__(self) -> None:
        for name in ("login_s", "audit_files_max"):
            if getattr(self, name) < 1:
                raise ConfigError(key=f"admin.{name}", problem="must be at least 1")
        if self.audit_bytes_max < 4096:
            raise ConfigError(key="admin.audit_bytes_max", problem="must be at least 4096")


@dataclass(frozen=True, slots=True, kw_only=True)
class TracingConfig:
    endpoint: str = setting(
        "",
        "URL of an OpenTelemetry receiver (OTLP over HTTP, …/v1/traces) for traces of messages. Empty is none.",
    )
    sample: float = setting(
        1.0, "Share of publishing channels whose messages are looked at for a trace context."
    )
    roots: bool = setting(False, "Whether messages that carry no trace context begin a trace of their own.")
    messages_per_s_max: int = setting(200, "Most messages that are traced in a second.")
    service: str = setting("tidemark", "The name of this service in traces.")

    def __post_init__(self) -> None:
        if self.endpoint and not self.endpoint.startswith(("http://", "https://")):
            raise ConfigError(
                key="tracing.endpoint", problem=f"must be an http or https URL, not {self.endpoint!r}"
            )
        if not 0 <= self.sample <= 1:
            raise ConfigError(key="tracing.sample", problem="must be 0 to 1")
        if self.messages_per_s_max < 1:
            raise ConfigError(key="tracing.messages_per_s_max", problem="must be at least 1")


SECTIONS: dict[str, type[Any]] = {
    "node": NodeConfig,
    "listen": ListenConfig,
    "tls": TlsConfig,
    "admin": AdminConfig,
    "log": LogConfig,
    "tracing": TracingConfig,
    "limits": LimitsConfig,
    "broker": BrokerConfig,
    "store": StoreConfig,
    "amqp091": Amqp091Config,
    "stream": StreamConfig,
    "cluster": ClusterConfig,
    "front": FrontConfig,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    node: NodeConfig
    listen: ListenConfig
    tls: TlsConfig
    admin: AdminConfig
    log: LogConfig
    tracing: TracingConfig
    limits: LimitsConfig
    broker: BrokerConfig
    store: StoreConfig
    amqp091: Amqp091Config
    stream: StreamConfig
    cluster: ClusterConfig
    front: FrontConfig
    origins: Mapping[str, str]
    """Key → "default", "file NAME", the environment variable or the flag."""

    def value(self, one: Setting) -> Any:
        return getattr(getattr(self, one.section), one.name)


def every_setting() -> Iterator[Setting]:
    for section, kind in SECTIONS.items():
        yield from settings.of(section, kind)


def load(
    flags: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    file: Path | None = None,
) -> Config:
    """The settings from all sources. `flags` maps keys (`store.segment_bytes`) to text.

    Raises:
        ConfigError: an unknown key, or a value that cannot be; it says where it came from.
    """
    known = {one.key: one for one in every_setting()}
    given: dict[str, tuple[Any, str]] = {}
    if file is not None:
        given |= _from_file(file, known)
    given |= _from_environment(environment or {}, known)
    for key, text in (flags or {}).items():
        _check_known(key, known)
        given[key] = (text, known[key].flag)
    return _assemble(known, given)


def _assemble(known: Mapping[str, Setting], given: Mapping[str, tuple[Any, str]]) -> Config:
    origins = dict.fromkeys(known, "default")
    values: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    for key, (value, origin) in given.items():
        one = known[key]
        origins[key] = origin
        try:
            values[one.section][one.name] = one.read(value)
        except ConfigError as error:
            raise _blaming(error, origins) from None
    try:
        sections = {section: kind(**values[section]) for section, kind in SECTIONS.items()}
        config = Config(**sections, origins=origins)
        if config.listen.amqps and config.tls.certificate is None:
            raise ConfigError(key="tls.certificate", problem="is needed to listen on listen.amqps")
        if config.listen.admins and config.tls.certificate is None:
            raise ConfigError(key="tls.certificate", problem="is needed to listen on listen.admins")
        _check_cluster(config)
        _check_front(config)
        return config
    except ConfigError as error:
        raise _blaming(error, origins) from None


def _check_cluster(config: Config) -> None:
    """A member has an address for its peers, and a log without holes. Whether it needs a secret is known when that
    address is."""
    if config.cluster.name and not config.listen.peer and not config.front.groups:
        raise ConfigError(key="listen.peer", problem="is needed when cluster.name is set")
    if config.cluster.name and config.store.on_corruption == "skip":
        raise ConfigError(
            key="store.on_corruption",
            problem="must be 'refuse' in a cluster: a member that starts without what was hit could lead; start it "
            "with an empty data directory instead, and the others fill it",
        )


def _check_front(config: Config) -> None:
    for places in config.front.places().values():
        for place in places:
            parse_address("front.groups", place.address)
            if place.member and not config.cluster.name:
                raise ConfigError(key="cluster.name", problem="is needed where front.groups names members")


def _blaming(error: ConfigError, origins: Mapping[str, str]) -> ConfigError:
    """The same error with the place that the value came from."""
    origin = origins.get(error.key, "default")
    if origin == "default":
        return error
    return ConfigError(key=error.key, problem=f"{error.problem} (from {origin})")


def _from_file(file: Path, known: Mapping[str, Setting]) -> dict[str, tuple[Any, str]]:
    try:
        tables = tomllib.loads(file.read_text())
    except OSError as problem:
        raise ConfigError(key="--config", problem=f"{file} cannot be read: {problem.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise ConfigError(key="--config", problem=f"{file} is not TOML: {problem}") from None
    found: dict[str, tuple[Any, str]] = {}
    for section, table in tables.items():
        if section not in SECTIONS:
            near = settings.closest(section, list(SECTIONS))
            raise ConfigError(key=section, problem=f"unknown section{near} (from file {file})")
        if not isinstance(table, dict):
            raise ConfigError(key=section, problem=f"must be a table, as in [{section}] (from file {file})")
        for name, value in table.items():
            _check_known(f"{section}.{name}", known, f" (from file {file})")
            found[f"{section}.{name}"] = (value, f"file {file}")
    return found


def _from_environment(
    environment: Mapping[str, str], known: Mapping[str, Setting]
) -> dict[str, tuple[Any, str]]:
    variables = {one.variable: key for key, one in known.items()}
    sections = tuple(f"TIDEMARK_{section.upper()}_" for section in SECTIONS)
    found: dict[str, tuple[Any, str]] = {}
    for variable, text in environment.items():
        if variable in variables:
            found[variables[variable]] = (text, variable)
        elif variable not in COMMAND_VARIABLES and variable.startswith(sections):
            near = settings.closest(variable, list(variables))
            raise ConfigError(key=variable, problem=f"unknown setting{near}")
    return found


def _check_known(key: str, known: Mapping[str, Setting], where: str = "") -> None:
    if key in known:
        return
    section, _, name = key.partition(".")
    if section in SECTIONS:
        near = settings.closest(name, [one.name for one in known.values() if one.section == section])
    else:
        near = settings.closest(key, list(known))
    raise ConfigError(key=key, problem=f"unknown setting{near}{where}")


def describe(config: Config) -> str:
    """Every setting with its value and origin, as a TOML file that would set the same."""
    lines: list[str] = []
    section = ""
    for one in every_setting():
        if one.section != section:
            section = one.section
            lines += ["", f"[{section}]"] if lines else [f"[{section}]"]
        secret = "password" in one.name and config.origins[one.key] != "default"
        line = f"{one.name} = {settings.show('(not shown)' if secret else config.value(one))}"
        lines.append(f"{line:<48} # {config.origins[one.key]}")
    return "\n".join(lines)
