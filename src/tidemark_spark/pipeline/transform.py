"""Steps of a pipeline applied to frames: SQL over views, or Python functions from frames to frames.

The same code serves a micro-batch (mode mirror), a streaming frame (append, update) and an empty frame (`check`).
Views live in the session of the frame, which belongs to one sink's query alone, so that names cannot meet.

Invariant: a step sees a view only after every expectation on it has taken its rows out.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812

from tidemark_spark.errors import TransformationRefused
from tidemark_spark.pipeline.decode import META, one_line
from tidemark_spark.pipeline.expectations import FAILED, with_failures
from tidemark_spark.pipeline.file import Chain, Pipeline, Transform
from tidemark_spark.pipeline.values import KEY, SEQUENCE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PRIVATE = "__"
"""Columns that begin so are the pipeline's own; no view has them."""


@dataclass(frozen=True, slots=True)
class Result:
    """What comes out at the end, and what was taken out on the way."""

    frame: DataFrame
    rejected: Mapping[str, DataFrame]
    """Transform → its rows that failed an expectation, with FAILED."""


def wanted_columns(chain: Chain) -> set[str]:
    """Which of the columns that the broker has to be asked for are used somewhere on the way."""
    texts = [one.sql or "" for one in chain.transforms] + [one.check for one in chain.expectations]
    python = any(one.python for one in chain.transforms)
    found = {name for name in META if python or any(name in text for text in texts)}
    if any(one.headers for one in chain.sources):
        return found | {"_headers"}
    return found - {"_headers"}


def source_view(checked: DataFrame) -> DataFrame:
    """The live rows of a source that passed, with the columns that SQL sees."""
    live = checked.where(F.col(FAILED).isNull() & ~F.col("__deleted"))
    return live.select(*(F.col(f"`{name}`") for name in checked.columns if not name.startswith(PRIVATE)))


def apply_steps(
    session: SparkSession, pipeline: Pipeline, chain: Chain, views: Mapping[str, DataFrame], reads: str
) -> Result:
    """Run the steps over the views of the sources; the frame that the sink reads.

    Raises:
        TransformationRefused: a step does not compile; says which, and why.
    """
    frames = dict(views)
    rejected: dict[str, DataFrame] = {}
    for name, frame in frames.items():
        frame.createOrReplaceTempView(name)
    for step in chain.transforms:
        label = f"[[transform]] '{step.name}'"
        try:
            made = session.sql(step.sql) if step.sql is not None else _call(pipeline, step, frames, label)
            made.schema  # noqa: B018  what does not compile is found here
        except PySparkException as error:
            raise TransformationRefused(step=label, problem=one_line(error)) from None
        if any(one.on == step.name for one in chain.expectations):
            checked = with_failures(made, step.name, chain.expectations, source=False)
            rejected[step.name] = checked.where(F.col(FAILED).isNotNull())
            made = checked.where(F.col(FAILED).isNull()).drop(FAILED)
        made.createOrReplaceTempView(step.name)
        frames[step.name] = made
    return Result(frames[reads], rejected)


def delivered_columns(frame: DataFrame, *, mirror: bool, step: str) -> list[str]:
    """Which columns of a result go to the sink: all but those that a view has of its own.

    Raises:
        TransformationRefused: in mode mirror key or sequence are missing; or a name is there twice.
    """
    names = frame.columns
    lower = [name.lower() for name in names]
    for name in names:
        if lower.count(name.lower()) > 1:
            raise TransformationRefused(
                step=step, problem=f"column '{name}' is there twice; rename one with AS"
            )
    if mirror:
        missing = [name for name in (KEY, SEQUENCE) if name not in names]
        if missing:
            others = ", ".join(name for name in names if name not in META) or "…"
            raise TransformationRefused(
                step=step,
                problem=f"the result has no {' and no '.join(missing)}, by which the sink mirrors the stream; write SELECT "
                f'{", ".join(missing)}, {others} FROM …, or deliver it with mode = "append" or "update"',
            )
    own = set(META) if mirror else {KEY, SEQUENCE, *META}
    found = [name for name in names if name not in own and not name.startswith(PRIVATE)]
    if not [name for name in found if name not in (KEY, SEQUENCE)] and not mirror:
        raise TransformationRefused(
            step=step,
            problem="the result has no column but the view's own; give those you want a name: _key AS id",
        )
    return found


def _call(pipeline: Pipeline, step: Transform, frames: Mapping[str, DataFrame], label: str) -> DataFrame:
    from pyspark.sql import DataFrame

    function = python_step(pipeline.folder, step.python or "", label)
    try:
        made = function(*(frames[name] for name in step.reads))
    except (PySparkException, TransformationRefused):
        raise
    except Exception as error:
        raise TransformationRefused(
            step=label, problem=f"{step.python} raised {type(error).__name__}: {error}"
        ) from error
    if not isinstance(made, DataFrame):
        raise TransformationRefused(
            step=label, problem=f"{step.python} must return a DataFrame, not {type(made).__name__}"
        )
    return made


def python_step(folder: Path, target: str, label: str) -> Callable[..., Any]:
    """The function `module:function`; the module is beside the file, or installed.

    Raises:
        TransformationRefused: there is no such thing.
    """
    module_name, _, name = target.partition(":")
    try:
        module = _module(folder, module_name)
    except ModuleNotFoundError as error:
        raise TransformationRefused(
            step=label, problem=f"there is no module '{error.name}', neither in {folder} nor installed"
        ) from None
    except Exception as error:
        raise TransformationRefused(
            step=label, problem=f"module '{module_name}' cannot be imported: {type(error).__name__}: {error}"
        ) from error
    function = getattr(module, name, None)
    if not callable(function):
        raise TransformationRefused(step=label, problem=f"module '{module_name}' has no function '{name}'")
    return function  # type: ignore[no-any-return]


@lru_cache(maxsize=64)
def _module(folder: Path, name: str) -> ModuleType:
    path = folder.joinpath(*name.split(".")).with_suffix(".py")
    if not path.exists():
        return importlib.import_module(name)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    # Workers cannot import what lies beside the file: functions that steps hand to Spark travel whole.
    cloudpickle: Any = importlib.import_module("pyspark.cloudpickle")
    cloudpickle.register_pickle_by_value(module)
    return module
