"""Which kinds of sinks there are. Each is imported when it is used, so that its package is needed only then."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from tidemark_spark.errors import SinkPackageMissing

if TYPE_CHECKING:
    from tidemark_spark.pipeline.sinks.sink import Sink

KINDS: dict[str, str] = {
    "parquet": "parquet:ParquetSink",
    "delta": "delta:DeltaSink",
    "duckdb": "duckdb:DuckDBSink",
    "postgres": "postgres:PostgresSink",
    "redis": "redis:RedisSink",
    "search": "search:SearchSink",
    "opensearch": "opensearch:OpenSearchSink",
    "stream": "stream:StreamSink",
    "amqp": "amqp:AMQPSink",
}
"""Kind → module in this package, and its class. A kind that is `module:Class` with a dot in the module is a sink of
the user's own."""


def make_sink(name: str, pipeline: str, kind: str, options: Mapping[str, Any]) -> Sink:
    """A sink that is not opened yet.

    Raises:
        OptionError: an option is missing, unknown or wrong.
        SinkPackageMissing: the kind needs a package that is not installed.
    """
    module, _, kind_name = KINDS.get(kind, kind).partition(":")
    if kind in KINDS:
        module = f"{__name__}.{module}"
    try:
        found = getattr(import_module(module), kind_name)
    except ImportError as error:
        raise SinkPackageMissing(sink=name, kind=kind, package=error.name or str(error)) from None
    return cast("Sink", found(name, pipeline, options))
