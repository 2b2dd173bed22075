"""The options that every campaign has, whatever it measures."""

from __future__ import annotations

import argparse
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def campaign_parser(program: str, about: str | None, page: str) -> argparse.ArgumentParser:
    """A parser with what all campaigns share; `page` is the one in docs/ that a full campaign writes."""
    parser = argparse.ArgumentParser(prog=program, description=about)
    parser.add_argument("--quick", action="store_true", help="small and short: is it sane at all?")
    parser.add_argument(
        "--case", action="append", default=[], metavar="NAME", help="a case or a pattern; repeatable"
    )
    parser.add_argument("--list", action="store_true", help="name the cases and stop")
    parser.add_argument("--folder", type=Path, default=ROOT / "build", help="where brokers keep their data")
    parser.add_argument(
        "--warm-memory",
        action=argparse.BooleanOptionalAction,
        help="fill free memory with clean page cache first (default: unless --quick)",
    )
    parser.add_argument(
        "--docs",
        action=argparse.BooleanOptionalAction,
        help=f"write docs/{page} and its plots (default: after a full campaign)",
    )
    parser.add_argument("--from-json", type=Path, metavar="FILE", help="measure nothing; report on this file")
    return parser
