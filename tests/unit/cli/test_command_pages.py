"""docs/commands/ is what the commands say about themselves; a page that is not is noticed."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tidemark.cli.app import app

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def make_docs(monkeypatch: pytest.MonkeyPatch) -> Any:
    spec = importlib.util.spec_from_file_location("make_docs", ROOT / "tools/make_docs.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    # The pages about settings, errors and Spark have a test of their own.
    monkeypatch.setattr(module, "PAGES", {})
    monkeypatch.setattr(sys, "argv", ["make_docs.py", "--check"])
    return module


def test_the_pages_are_current(make_docs: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert make_docs.main() == 0, capsys.readouterr().err


def test_a_page_that_is_old_missing_or_left_over_is_noticed(
    make_docs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(ROOT / "docs/commands", tmp_path / "commands")
    monkeypatch.setattr(make_docs, "DOCS", tmp_path)
    assert make_docs.main() == 0
    page = tmp_path / "commands/perf.md"
    text = page.read_text()

    page.write_text(text.replace("--window", "--door"))
    assert make_docs.main() == 1
    page.unlink()
    assert make_docs.main() == 1
    page.write_text(text)
    (tmp_path / "commands/gone.md").write_text("")
    assert make_docs.main() == 1


def test_every_command_has_a_page_and_every_option_is_in_it() -> None:
    from typer.main import get_command

    def walk(command: Any, title: str, page: str) -> None:
        text = (ROOT / "docs/commands" / page).read_text()
        assert title in text
        for parameter in command.params:
            if (
                parameter.param_type_name == "option"
                and parameter.name not in NOT_TOLD
                and not parameter.hidden
            ):
                assert f"`{parameter.opts[0]}`" in text, f"{title} {parameter.opts[0]}"
        for name, inner in (getattr(command, "commands", None) or {}).items():
            if not inner.hidden:
                own = title == "tidemark ctl" and getattr(inner, "commands", None)
                walk(inner, f"{title} {name}", f"ctl-{name}.md" if own else page)

    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        walk(command, f"tidemark {name}", f"{name}.md")


NOT_TOLD = ("help", "install_completion", "show_completion")
