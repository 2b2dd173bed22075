"""From a stream's rows, bytes, to columns that SQL sees; what cannot be decoded is marked, not lost.

`decoded` gives a frame with one row for each row of the batch, tombstones included: the columns of the value, the
columns of the view's own (`_key`, `_sequence`, …), and beside them, under names that start with two underscores, what the
pipeline keeps for itself: `__deleted`, `__bad` (true when the key or the value does not decode) and the raw bytes.

JSON is read by Spark. Spark's package on PyPI has no Avro, so Avro is read with fastavro in Arrow batches, in Python
workers; nothing is downloaded, and pandas is not needed.

Invariant: a live row with `__bad` false has a key, and its value had exactly the shape that the schema says.
"""

from __future__ import annotations

import datetime
import decimal
import io
import json
import uuid
from collections.abc import Callable, Collection
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as t

from tidemark_spark.errors import DecoderMissing, TransformationRefused
from tidemark_spark.pipeline.file import RESERVED, Source

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

DELETED, BAD, RAW_KEY, RAW_VALUE = "__deleted", "__bad", "__raw_key", "__raw_value"
_VALUE, _CORRUPT = "__value", "__corrupt"
META = {"_timestamp": "timestamp", "_shard": "shard", "_history": "history", "_headers": "headers"}
"""Columns of a view → columns of the connector."""


def connector_columns(wanted: Collection[str]) -> list[str]:
    """What to ask of the broker for a view with these columns of `META`."""
    return ["key", "value", "sequence", "deleted", *(META[name] for name in META if name in wanted)]


def value_type(source: Source) -> t.StructType:
    """The columns of the value.

    Raises:
        TransformationRefused: the schema is none, or uses a name that views need.
    """
    step = f"[source.{source.name}] schema"
    if source.value in ("text", "raw"):
        return t.StructType(
            [t.StructField("value", t.StringType() if source.value == "text" else t.BinaryType())]
        )
    assert source.schema is not None
    if source.value == "avro":
        found = avro_type(source.schema, step)
    else:
        try:
            parsed = t.StructType.fromDDL(source.schema)
        except PySparkException as error:
            raise TransformationRefused(step=step, problem=one_line(error)) from None
        assert isinstance(parsed, t.StructType)
        found = parsed
    for one in found.fields:
        if one.name.lower() in RESERVED or one.name.startswith("__"):
            raise TransformationRefused(
                step=step, problem=f"the column name '{one.name}' is taken: views have {', '.join(RESERVED)}"
            )
    return found


def decoded(rows: DataFrame, source: Source, wanted: Collection[str]) -> DataFrame:
    """The rows of a batch as a view will see them, with what the pipeline needs to know about each."""
    columns = value_type(source)
    key = F.coalesce(F.col("key"), F.col("sequence").cast("string").cast("binary"))
    if source.key == "string":
        key = F.expr(
            "try_validate_utf8(cast(coalesce(key, cast(cast(sequence as string) as binary)) as string))"
        )
    value, bad = _value(source, columns, rows)
    first = rows.select(
        key.alias("_key"),
        F.col("sequence").alias("_sequence"),
        F.col("deleted").alias(DELETED),
        F.col("key").alias(RAW_KEY),
        F.col("value").alias(RAW_VALUE),
        F.when(~F.col("deleted"), value).alias(_VALUE),
        *(F.col(META[name]).alias(name) for name in META if name in wanted),
    )
    return first.select(
        "_key",
        "_sequence",
        *(F.col(_VALUE)[one.name].alias(one.name) for one in columns.fields),
        *(name for name in META if name in wanted),
        DELETED,
        (~F.col(DELETED) & (F.col("_key").isNull() | bad)).alias(BAD),
        RAW_KEY,
        RAW_VALUE,
    )


def one_line(error: BaseException) -> str:
    """What Spark says, without its class, its hints for SQL states and its plan."""
    text = str(error).strip().split("\n")[0]
    if text.startswith("[") and "] " in text:
        text = text.partition("] ")[2]
    return text.partition(" SQLSTATE:")[0].rstrip(" .")


def _value(source: Source, columns: t.StructType, rows: DataFrame) -> tuple[Column, Column]:
    """The value as a struct, and whether it is none, said of that struct."""
    text = "cast(value as string)"
    struct = F.col(_VALUE)
    missing = F.lit(False)
    for one in columns.fields:
        if not one.nullable:
            missing = missing | struct[one.name].isNull()
    match source.value:
        case "raw":
            return F.struct(F.col("value").alias("value")), F.lit(False)
        case "text":
            return F.struct(F.expr(f"try_validate_utf8({text})").alias("value")), struct["value"].isNull()
        case "json":
            nullable = [t.StructField(one.name, one.dataType, True) for one in columns.fields]
            schema = t.StructType([*nullable, t.StructField(_CORRUPT, t.StringType(), True)])
            options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
            parsed = F.from_json(F.expr(f"try_validate_utf8({text})"), schema, options)
            return parsed, struct.isNull() | struct[_CORRUPT].isNotNull() | missing
        case "avro":
            assert source.schema is not None
            zone = rows.sparkSession.conf.get("spark.sql.session.timeZone") or "UTC"
            return _avro_reader(source, columns, zone)(F.col("value")), struct.isNull()


# Avro -------------------------------------------------------------------------------------------------

_PRIMITIVE: dict[str, t.DataType] = {
    "boolean": t.BooleanType(),
    "int": t.IntegerType(),
    "long": t.LongType(),
    "float": t.FloatType(),
    "double": t.DoubleType(),
    "bytes": t.BinaryType(),
    "string": t.StringType(),
    "null": t.NullType(),
}
_LOGICAL: dict[str, t.DataType] = {
    "date": t.DateType(),
    "timestamp-millis": t.TimestampType(),
    "timestamp-micros": t.TimestampType(),
    "local-timestamp-millis": t.TimestampNTZType(),
    "local-timestamp-micros": t.TimestampNTZType(),
    "uuid": t.StringType(),
    "time-millis": t.StringType(),
    "time-micros": t.StringType(),
}


def avro_type(schema: str, step: str) -> t.StructType:
    """The Spark type of a record's Avro schema.

    Raises:
        TransformationRefused: it is none, or has a type that has no counterpart.
    """

    def refused(problem: str) -> TransformationRefused:
        return TransformationRefused(step=step, problem=problem)

    named: dict[str, t.DataType] = {}

    def convert(one: Any, where: str) -> tuple[t.DataType, bool]:
        """Its type, and whether it may be null."""
        if isinstance(one, list):
            others = [branch for branch in one if branch != "null"]
            if len(others) != 1:
                raise refused(f"'{where}' is a union of several types, which has no counterpart in SQL")
            return convert(others[0], where)[0], len(others) < len(one)
        if isinstance(one, str):
            if (found := _PRIMITIVE.get(one) or named.get(one) or named.get(one.rpartition(".")[2])) is None:
                raise refused(f"'{where}' has the unknown type {one!r}")
            return found, one == "null"
        if not isinstance(one, dict):
            raise refused(f"'{where}' has no type but {one!r}")
        found = plain(one, where)
        if "name" in one and one.get("type") in ("record", "enum", "fixed"):
            named[one["name"]] = found
        return found, False

    def plain(one: dict[str, Any], where: str) -> t.DataType:
        if one.get("logicalType") == "decimal":
            return t.DecimalType(int(one["precision"]), int(one.get("scale", 0)))
        if one.get("logicalType") in _LOGICAL:
            return _LOGICAL[one["logicalType"]]
        match one.get("type"):
            case "record":
                fields = []
                for part in one.get("fields", []):
                    inner, null = convert(part.get("type"), f"{where}.{part.get('name')}".lstrip("."))
                    fields.append(t.StructField(part["name"], inner, null))
                return t.StructType(fields)
            case "enum":
                return t.StringType()
            case "fixed":
                return t.BinaryType()
            case "array":
                return t.ArrayType(*convert(one.get("items"), f"{where}[]"))
            case "map":
                return t.MapType(t.StringType(), *convert(one.get("values"), f"{where}{{}}"))
            case inner:
                return convert(inner, where)[0]

    try:
        found, _ = convert(json.loads(schema), "")
    except (ValueError, KeyError) as error:
        raise refused(f"is no Avro schema: {error}") from None
    if not isinstance(found, t.StructType):
        raise refused("must be the schema of a record, whose fields are the columns")
    return found


def _avro_reader(source: Source, columns: t.StructType, zone: str) -> Callable[[Column], Column]:
    from pyspark.sql.pandas.types import to_arrow_type

    functions: Any = F
    try:
        import fastavro
    except ImportError:
        raise DecoderMissing(source=source.name) from None
    try:
        fastavro.parse_schema(json.loads(source.schema or ""))
    except Exception as error:
        raise TransformationRefused(
            step=f"[source.{source.name}] schema", problem=f"is no Avro schema: {error}"
        ) from None
    # All null-able inside: a null where the schema has none cannot be written in Avro anyway.
    kind = to_arrow_type(_nullable(columns), timezone=zone)
    schema = source.schema or ""

    def read(values: Any) -> Any:
        import pyarrow as pa

        return pa.array([avro_value(schema, one.as_py()) for one in values], kind)

    import pyarrow as pa

    read.__annotations__ = {"values": pa.Array, "return": pa.Array}
    found: Callable[[Column], Column] = functions.arrow_udf(read, returnType=_nullable(columns))
    return found


def avro_value(schema: str, value: bytes | None) -> dict[str, Any] | None:
    """A record as Arrow takes it; None when the bytes are not exactly one record of this schema."""
    import fastavro

    if value is None:
        return None
    parsed = _parsed(schema)
    stream = io.BytesIO(value)
    try:
        found = fastavro.schemaless_reader(stream, parsed, None)
    except Exception:  # whatever the bytes make it stumble over
        return None
    if stream.tell() != len(value) or not isinstance(found, dict):
        return None
    return {name: _arrow(one) for name, one in found.items()}


@lru_cache(maxsize=16)
def _parsed(schema: str) -> Any:
    import fastavro

    return fastavro.parse_schema(json.loads(schema))


def _arrow(value: Any) -> Any:
    match value:
        case dict():
            return {name: _arrow(one) for name, one in value.items()}
        case list():
            return [_arrow(one) for one in value]
        case uuid.UUID() | datetime.time():
            return str(value)
        case decimal.Decimal():
            return value
        case _:
            return value


def _nullable(kind: t.DataType) -> Any:
    match kind:
        case t.StructType():
            return t.StructType(
                [t.StructField(one.name, _nullable(one.dataType), True) for one in kind.fields]
            )
        case t.ArrayType():
            return t.ArrayType(_nullable(kind.elementType), True)
        case t.MapType():
            return t.MapType(kind.keyType, _nullable(kind.valueType), True)
        case _:
            return kind
