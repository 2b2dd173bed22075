"""What the plots of all campaigns have in common. Without matplotlib there are none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

LIMIT = "#343a40"
"""The colour of lines that figures are held against, and of spreads."""


def pyplot() -> Any:
    """`matplotlib.pyplot`, set up so that the same figures make the same file; None where it is not installed."""
    try:
        import matplotlib
    except ImportError:
        return None
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "tidemark"
    matplotlib.rcParams["font.size"] = 9
    import matplotlib.pyplot as plt

    return plt


def tidy(axis: Any) -> None:
    """Lines behind the bars, and no box around them."""
    axis.grid(axis="x", alpha=0.3)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)


def save(figure: Any, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    pyplot().close(figure)
    return path
