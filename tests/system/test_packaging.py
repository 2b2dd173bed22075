"""What is installed is what is tested here: archives are built from a clean copy, installed where nothing else is, and run.

Everything in packaging/ is checked by the tool that would read it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from helpers.broker import BrokerProcess

ROOT = Path(__file__).resolve().parents[2]
PACKAGING = ROOT / "packaging"
TOOLS = Path(sys.executable).parent
BUILD_S = 900


def run(*command: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        check=False,
        timeout=BUILD_S,
        **options,
    )  # type: ignore[call-overload, no-any-return]


def needed(name: str) -> str:
    """A program, where it is installed; without it a test is skipped on a laptop and fails in CI."""
    found = shutil.which(name) or shutil.which(str(TOOLS / name))
    if found is None:
        if os.environ.get("CI"):
            pytest.fail(f"{name} is not installed")
        pytest.skip(f"{name} is not installed")
    return found


# Archives ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory with the sdist and the wheel, built from a copy without anything that was built before."""
    place = tmp_path_factory.mktemp("build")
    for name in ("pyproject.toml", "setup.py", "README.md", "MANIFEST.in"):
        shutil.copy(ROOT / name, place)
    ignored = shutil.ignore_patterns("*.so", "*_c.c", "__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", place / "src", ignore=ignored)
    done = run(sys.executable, "-m", "build", "--outdir", place / "dist", place, cwd=place)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return place / "dist"


def sources(suffix: str) -> set[str]:
    """Paths below src/ of all files of ours with this ending."""
    return {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src").rglob(f"*{suffix}")}


def web_files() -> set[str]:
    folder = ROOT / "src/tidemark/admin/web"
    return {str(path.relative_to(ROOT / "src")) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
@pytest.mark.timeout(BUILD_S)
def test_the_wheel_has_every_compiled_module_and_the_web_page(archives: Path) -> None:
    [wheel] = archives.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    built = {re.sub(r"\.cpython-[^/]*\.so$", "", name) for name in names if name.endswith(".so")}

    assert built == {name.removesuffix(".pyx") for name in sources("_c.pyx")}
    assert web_files() <= names
    assert sources(".py") <= names
    assert not [name for name in names if name.endswith("_c.c") or name.startswith(("tests/", "bench/"))]


@pytest.mark.slow
@pytest.mark.timeout(BUILD_S)
def test_the_source_archive_has_all_sources_and_nothing_that_was_built(archives: Path) -> None:
    [archive] = archives.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}

    assert {f"src/{name}" for name in sources(".pyx") | sources(".h") | sources(".py") | web_files()} <= names
    assert not [name for name in names if name.endswith((".so", "_c.c", ".pyc"))]


@pytest.fixture(scope="module")
def installed(archives: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of an environment with nothing but the wheel and what it needs."""
    place = tmp_path_factory.mktemp("installed") / "venv"
    venv.create(place, with_pip=True)
    [wheel] = archives.glob("*.whl")
    done = run(place / "bin/python", "-m", "pip", "install", "-q", wheel, env=clean())
    assert done.returncode == 0, done.stderr[-3000:]
    return place / "bin"


def clean() -> dict[str, str]:
    """Our environment without what would let the source tree be found."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}


@pytest.mark.slow
@pytest.mark.timeout(BUILD_S)
def test_a_broker_from_the_wheel_takes_a_message_over_amqp_and_shows_its_page(
    installed: Path, tmp_path: Path
) -> None:
    where = run(
        installed / "python", "-c", "import tidemark; print(tidemark.__file__)", env=clean(), cwd=tmp_path
    )
    assert str(installed.parent) in where.stdout

    broker = subprocess.Popen(
        [installed / "tidemark", "serve", "--data", "data", "--amqp", "127.0.0.1:0", "--admin", "127.0.0.1:0"],
        cwd=tmp_path, env=clean(), stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert broker.stdout is not None
        facts = dict(word.split("=", 1) for word in broker.stdout.readline().split() if "=" in word)
        settings = clean() | {"TIDEMARK_URL": f"http://{facts['admin']}"}

        version = run(installed / "tidemark", "version", env=settings)
        assert version.stdout.startswith("tidemark ") and "pure" not in version.stdout
        load = run(
            installed / "tidemark", "perf", "--url", f"amqp://guest:guest@{facts['amqp']}/%2F", "--count", "500",
            env=settings,
        )  # fmt: skip
        assert load.returncode == 0, load.stdout + load.stderr
        assert "0 lost, 0 duplicates" in load.stdout
        for words in (["queues", "declare", "orders"], ["publish", "orders", "hello"]):
            done = run(installed / "tidemark", "ctl", *words, env=settings)
            assert done.returncode == 0, done.stderr
        assert "hello" in run(installed / "tidemark", "ctl", "get", "orders", env=settings).stdout
        page = run(
            installed / "python", "-c",
            f"import urllib.request as u; print(u.urlopen('http://{facts['admin']}/').read().decode())",
            env=settings,
        )  # fmt: skip
        assert "<title>" in page.stdout, page.stderr
    finally:
        broker.terminate()
        assert broker.wait(30) == 0


# Example configurations ----------------------------------------------------------------------------------


@pytest.fixture
def somewhere(tmp_path: Path, a_certificate: tuple[Path, Path]) -> Path:
    """A folder with the files that the examples expect in /etc/tidemark."""
    certificate, key = a_certificate
    shutil.copy(certificate, tmp_path / "server.pem")
    shutil.copy(key, tmp_path / "server.key")
    (tmp_path / "cluster.secret").write_text("0123456789abcdef" * 4)
    (tmp_path / "cluster.secret").chmod(0o600)
    return tmp_path


@pytest.fixture(scope="module")
def a_certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    from helpers.certificates import self_signed

    return self_signed(tmp_path_factory.mktemp("tls"), "localhost")


def example(name: str, somewhere: Path) -> Path:
    text = (PACKAGING / "config" / name).read_text()
    file = somewhere / name
    file.write_text(
        text.replace("/etc/tidemark/", f"{somewhere}/").replace("/var/lib/tidemark", f"{somewhere}/state")
    )
    return file


@pytest.mark.parametrize("name", sorted(one.name for one in (PACKAGING / "config").iterdir()))
def test_every_example_configuration_is_accepted(name: str, somewhere: Path) -> None:
    file = example(name, somewhere)
    environment = clean() | {"PYTHONPATH": str(ROOT / "src")}
    command = (sys.executable, "-m", "tidemark", "serve", "--config", file, "--print-config")

    done = run(*command, env=environment)
    assert done.returncode == 0, done.stderr
    for section, table in tomllib.loads(file.read_text()).items():
        for key in table:
            assert re.search(rf"^{key} = .*# file .*{name}$", done.stdout, re.MULTILINE), f"{section}.{key}"

    file.write_text(file.read_text() + "\n[nonsense]\na = 1\n")
    assert run(*command, env=environment).returncode == 2


def test_a_broker_runs_with_the_example_for_one_node(somewhere: Path) -> None:
    broker = BrokerProcess(
        somewhere / "data", "--config", str(example("one-node.toml", somewhere)), "--amqps", "127.0.0.1:0",
        "--listen.admins", "127.0.0.1:0", "--limits.disk-free-bytes-min", "1MiB",
    ).start()  # fmt: skip
    try:
        assert "name=tidemark-1" in broker.ready_line
    finally:
        broker.stop()


# Systemd, Docker, Kubernetes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["tidemark.service", "tidemark-front.service", "tidemark@.service"])
def test_the_systemd_units_are_understood_and_confined(tmp_path: Path, name: str) -> None:
    analyze = needed("systemd-analyze")
    program = tmp_path / "tidemark"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit = tmp_path / name.replace("@", "@fast")
    text = (PACKAGING / "systemd" / name).read_text()
    unit.write_text(
        text.replace("/opt/tidemark/bin/tidemark", str(program)).replace("file:/usr", "file:///usr")
    )

    done = run(analyze, "verify", "--man=no", unit)
    assert (done.returncode, done.stderr.strip()) == (0, "")
    rated = run(analyze, "security", "--offline=true", "--threshold=20", unit)
    assert rated.returncode == 0, rated.stdout

    unit.write_text(unit.read_text().replace("[Service]", "[Service]\nNoSuchThing=yes"))
    assert "NoSuchThing" in run(analyze, "verify", "--man=no", unit).stderr


def test_the_unit_restarts_a_broker_that_died_and_not_one_that_is_set_wrongly() -> None:
    text = (PACKAGING / "systemd/tidemark.service").read_text()
    assert "Restart=on-failure" in text
    assert "RestartPreventExitStatus=2" in text
    files = int(re.search(r"LimitNOFILE=(\d+)", text)[1])  # type: ignore[index]
    config = tomllib.loads((PACKAGING / "config/one-node.toml").read_text())
    assert files > config["limits"]["connections_max"]


def test_the_user_and_the_directories_are_what_systemd_understands(tmp_path: Path) -> None:
    sysusers, tmpfiles = needed("systemd-sysusers"), needed("systemd-tmpfiles")
    (tmp_path / "etc").mkdir()
    done = run(sysusers, f"--root={tmp_path}", PACKAGING / "systemd/tidemark.sysusers.conf")
    assert done.returncode == 0, done.stderr
    assert "tidemark:" in (tmp_path / "etc/passwd").read_text()

    done = run(tmpfiles, f"--root={tmp_path}", "--create", PACKAGING / "systemd/tidemark.tmpfiles.conf")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "var/lib/tidemark").stat().st_mode & 0o777 == 0o750


def test_the_dockerfile_is_clean_and_does_not_run_as_root(tmp_path: Path) -> None:
    hadolint = needed("hadolint")
    file = PACKAGING / "docker/Dockerfile"
    done = run(hadolint, "--failure-threshold", "style", file)
    assert (done.returncode, done.stdout) == (0, "")

    stages = [
        line.split() for line in file.read_text().splitlines() if line.split(" ")[0] in ("FROM", "USER")
    ]
    assert [words[0] for words in stages] == ["FROM", "FROM", "USER"]
    assert stages[-1][1] not in ("root", "0", "0:0")
    bad = tmp_path / "Dockerfile"
    bad.write_text(file.read_text() + "RUN cd /tmp && sudo ls\n")
    assert run(hadolint, bad).returncode == 1


def test_what_the_dockerfile_copies_is_there() -> None:
    text = (PACKAGING / "docker/Dockerfile").read_text()
    for words in re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.MULTILINE):
        for name in words.split():
            assert (ROOT / name).exists(), name
            assert f"!{name}" in (PACKAGING / "docker/Dockerfile.dockerignore").read_text().split()


@pytest.fixture(scope="module")
def manifests() -> list[dict[str, object]]:
    return list(yaml.safe_load_all((PACKAGING / "kubernetes/tidemark.yaml").read_text()))


def test_the_kubernetes_manifests_fit_the_schemas(manifests: list[dict[str, object]]) -> None:
    import kubernetes_validate

    for manifest in manifests:
        kubernetes_validate.validate(manifest, "1.31", strict=True)
    wrong = {**manifests[-1], "spec": {**manifests[-1]["spec"], "replicas": "three"}}  # type: ignore[dict-item]
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, "1.31", strict=True)


def test_the_manifests_are_tidy() -> None:
    rules = "{extends: default, rules: {line-length: {max: 130}, braces: {max-spaces-inside: 1}}}"
    done = run(needed("yamllint"), "-s", "-d", rules, PACKAGING / "kubernetes/tidemark.yaml")
    assert (done.returncode, done.stdout) == (0, "")


def test_the_parts_of_the_manifests_belong_together(manifests: list[dict[str, object]]) -> None:
    by_kind: dict[str, list[dict[str, object]]] = {}
    for manifest in manifests:
        by_kind.setdefault(str(manifest["kind"]), []).append(manifest)
    [stateful] = by_kind["StatefulSet"]
    [budget] = by_kind["PodDisruptionBudget"]
    spec: dict[str, object] = stateful["spec"]  # type: ignore[assignment]
    labels = spec["template"]["metadata"]["labels"]  # type: ignore[index]
    services = {one["metadata"]["name"]: one["spec"] for one in by_kind["Service"]}  # type: ignore[index]
    [container] = spec["template"]["spec"]["containers"]  # type: ignore[index]
    ports = {port["name"] for port in container["ports"]}

    assert services[spec["serviceName"]]["clusterIP"] == "None"
    for selector in (
        spec["selector"]["matchLabels"],  # type: ignore[index]
        budget["spec"]["selector"]["matchLabels"],  # type: ignore[index]
        *(one["selector"] for one in services.values()),
    ):
        assert selector.items() <= labels.items()
    assert {port["targetPort"] for one in services.values() for port in one["ports"]} <= ports
    probes = [container[name]["httpGet"] for name in ("startupProbe", "livenessProbe", "readinessProbe")]
    assert {probe["port"] for probe in probes} <= ports


def test_the_configuration_in_the_manifests_is_accepted(
    manifests: list[dict[str, object]], tmp_path: Path
) -> None:
    [settings] = [one["data"]["tidemark.toml"] for one in manifests if one["kind"] == "ConfigMap"]  # type: ignore[index]
    secret = tmp_path / "cluster-secret"
    secret.write_text("0123456789abcdef" * 4)
    file = tmp_path / "tidemark.toml"
    file.write_text(settings.replace("/etc/tidemark/secret", str(tmp_path)))
    [stateful] = [one for one in manifests if one["kind"] == "StatefulSet"]
    [container] = stateful["spec"]["template"]["spec"]["containers"]  # type: ignore[index]
    given = {one["name"]: "10.0.0.1:5680" for one in container["env"] if one["name"].startswith("TIDEMARK_")}

    environment = clean() | {"PYTHONPATH": str(ROOT / "src")} | given | {"TIDEMARK_NODE_NAME": "tidemark-0"}
    done = run(sys.executable, "-m", "tidemark", "serve", "--config", file, "--print-config", env=environment)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^peer = .*TIDEMARK_LISTEN_PEER$", done.stdout, re.MULTILINE)


@pytest.fixture(scope="module")
def probed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path_factory.mktemp("probes") / "data").start()
    yield process
    process.stop()


def test_what_the_probes_ask_is_answered_without_a_login(
    probed: BrokerProcess, manifests: list[dict[str, object]]
) -> None:
    import httpx

    [stateful] = [one for one in manifests if one["kind"] == "StatefulSet"]
    [container] = stateful["spec"]["template"]["spec"]["containers"]  # type: ignore[index]
    url = f"http://{probed.admin.host}:{probed.admin.port}"
    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert httpx.get(url + container[name]["httpGet"]["path"]).status_code == 200, name
    asked = re.search(r"15672(/api/[a-z/]+)'", (PACKAGING / "docker/Dockerfile").read_text())
    assert asked is not None
    assert httpx.get(url + asked[1]).status_code == 200
