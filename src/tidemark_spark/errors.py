"""Errors of the connector and of pipelines: facts as fields, a code that never changes, one sentence with the next step.

They cross process borders (Spark's workers), so they pickle; `tidemark.errors` says how.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tidemark.errors import TidemarkError


@dataclass(eq=False, kw_only=True)
class PipelineError(TidemarkError):
    """Base of what a pipeline can fail with."""

    code: ClassVar[str] = "pipeline"


@dataclass(eq=False, kw_only=True)
class SinkBehind(PipelineError):
    code: ClassVar[str] = "pipeline.sink-behind"
    pipeline: str
    sink: str
    stream: str
    held: int
    start: int

    def __str__(self) -> str:
        return (
            f"sink '{self.sink}' holds stream '{self.stream}' up to sequence {self.held}, but the next batch begins at "
            f"{self.start}: rows in between would be missing (was the sink restored from a backup?). It goes on from what "
            f"the sink holds when the pipeline is started again"
        )


@dataclass(eq=False, kw_only=True)
class SinkAhead(PipelineError):
    code: ClassVar[str] = "pipeline.sink-ahead"
    pipeline: str
    sink: str

    def __str__(self) -> str:
        return (
            f"sink '{self.sink}' holds a part of what the batch brings: somebody else fills it, too. See that pipeline "
            f"'{self.pipeline}' runs once; it goes on from what the sink holds when it is started again"
        )


@dataclass(eq=False, kw_only=True)
class SinkOfAnotherQuery(PipelineError):
    code: ClassVar[str] = "pipeline.sink-of-another-query"
    pipeline: str
    sink: str
    stored: str
    query: str

    def __str__(self) -> str:
        return (
            f"sink '{self.sink}' holds results of query {self.stored}, this is query {self.query} (another checkpoint): "
            f"results could be applied twice. Restore the checkpoint, or run `tidemark pipeline reset FILE --sink "
            f"{self.sink} --drop` to start over"
        )


@dataclass(eq=False, kw_only=True)
class ResultsMissing(PipelineError):
    code: ClassVar[str] = "pipeline.results-missing"
    pipeline: str
    sink: str
    held: int | None
    """The last batch that the sink has; None: it has none."""
    batch: int

    def __str__(self) -> str:
        held = "no results" if self.held is None else f"the results up to batch {self.held}"
        return (
            f"sink '{self.sink}' holds {held}, and the next batch is {self.batch}: those in between would be missing (was "
            f"the sink emptied, or restored from a backup?). Restore it as it was, or run `tidemark pipeline reset FILE --sink "
            f"{self.sink} --drop` to start over"
        )


@dataclass(eq=False, kw_only=True)
class SinkUnavailable(PipelineError):
    """It cannot be reached now. Worth trying again."""

    code: ClassVar[str] = "pipeline.sink-unavailable"
    sink: str
    problem: str

    def __str__(self) -> str:
        return f"sink '{self.sink}' cannot be used now: {self.problem}"


@dataclass(eq=False, kw_only=True)
class SinkRefused(PipelineError):
    """It can be reached and says no. The problem says what to do."""

    code: ClassVar[str] = "pipeline.sink-refused"
    sink: str
    problem: str

    def __str__(self) -> str:
        return f"sink '{self.sink}': {self.problem}"


@dataclass(eq=False, kw_only=True)
class SchemaDrift(PipelineError):
    code: ClassVar[str] = "pipeline.schema-drift"
    sink: str
    column: str
    has: str
    gets: str

    def __str__(self) -> str:
        return (
            f"sink '{self.sink}': column '{self.column}' is {self.has} there and {self.gets} in the pipeline; change the "
            f"transformation (CAST), or run `tidemark pipeline reset FILE --sink {self.sink} --drop` to make it anew"
        )


@dataclass(eq=False, kw_only=True)
class RowRefused(PipelineError):
    code: ClassVar[str] = "pipeline.row-refused"
    sink: str
    key: str
    sequence: int | None
    """None for a row that has no place in the stream: a result, in the modes append and update."""
    problem: str

    def __str__(self) -> str:
        at = "" if self.sequence is None else f" at sequence {self.sequence}"
        return (
            f"sink '{self.sink}' does not take the row with key '{self.key}'{at}: {self.problem}. "
            f"Correct it in the stream, or add an expectation that sends such rows to the dead letters"
        )


# Starting Spark --------------------------------------------------------------------------------


@dataclass(eq=False, kw_only=True)
class SparkMissing(PipelineError):
    code: ClassVar[str] = "pipeline.spark-missing"

    def __str__(self) -> str:
        return "PySpark is not installed; `pip install tidemark[spark]` brings it, with all it needs"


@dataclass(eq=False, kw_only=True)
class JavaMissing(PipelineError):
    code: ClassVar[str] = "pipeline.java-missing"
    found: str

    def __str__(self) -> str:
        return (
            f"Spark needs Java 17 or newer and there is none: {self.found}. `pip install tidemark[spark]` brings one; "
            f"or install a JDK and set JAVA_HOME to its folder"
        )


# Pipelines --------------------------------------------------------------------------------------


@dataclass(eq=False, kw_only=True)
class PipelineFileError(PipelineError):
    """The file is wrong: every mistake in it, a sentence each."""

    code: ClassVar[str] = "pipeline.file"
    path: str
    mistakes: tuple[str, ...]

    def __str__(self) -> str:
        if len(self.mistakes) == 1:
            return f"{self.path}: {self.mistakes[0]}"
        lines = "".join(f"\n  {mistake}" for mistake in self.mistakes)
        return f"{self.path} has {len(self.mistakes)} mistakes:{lines}"


@dataclass(eq=False, kw_only=True)
class SinkPackageMissing(PipelineError):
    code: ClassVar[str] = "pipeline.sink-package-missing"
    sink: str
    kind: str
    package: str

    def __str__(self) -> str:
        return (
            f"sink '{self.sink}' of kind '{self.kind}' needs the package '{self.package}', which is not installed; "
            f"`pip install tidemark[sinks]` brings what all sinks need"
        )


@dataclass(eq=False, kw_only=True)
class DecoderMissing(PipelineError):
    code: ClassVar[str] = "pipeline.decoder-missing"
    source: str

    def __str__(self) -> str:
        return (
            f"source '{self.source}' has Avro values, which need the package 'fastavro' on the driver and on every "
            f"worker; `pip install tidemark[avro]` brings it"
        )


@dataclass(eq=False, kw_only=True)
class TransformationRefused(PipelineError):
    """A step of the file does not compile, or gives what a sink cannot take."""

    code: ClassVar[str] = "pipeline.transformation"
    step: str
    problem: str

    def __str__(self) -> str:
        return f"{self.step}: {self.problem}"


@dataclass(eq=False, kw_only=True)
class ExpectationFailed(PipelineError):
    code: ClassVar[str] = "pipeline.expectation-failed"
    sink: str
    on: str
    expectation: str
    key: str
    sequence: int
    rows: int

    def __str__(self) -> str:
        others = f" (and {self.rows - 1} more rows)" if self.rows > 1 else ""
        return (
            f"expectation '{self.expectation}' on '{self.on}' fails for the row with key '{self.key}' at sequence "
            f"{self.sequence}{others}; nothing of this batch went to sink '{self.sink}'. Correct the row in the stream, or "
            f'write otherwise = "dead-letter" or "drop"'
        )


@dataclass(eq=False, kw_only=True)
class TransformationChanged(PipelineError):
    code: ClassVar[str] = "pipeline.transformation-changed"
    sink: str

    def __str__(self) -> str:
        return (
            f"what feeds sink '{self.sink}' (schema, transformations or expectations) has changed since it was filled: rows "
            f"that are there were made the old way. `tidemark pipeline reset FILE --sink {self.sink} --drop` makes it "
            f"anew; `tidemark pipeline run FILE --accept-change` keeps them and goes on"
        )


@dataclass(eq=False, kw_only=True)
class PipelineRuns(PipelineError):
    code: ClassVar[str] = "pipeline.runs"
    pipeline: str
    state: str
    pid: str

    def __str__(self) -> str:
        return (
            f"pipeline '{self.pipeline}' runs already (process {self.pid}, state in {self.state}); stop that one first, or "
            f"give this one another name and state"
        )


@dataclass(eq=False, kw_only=True)
class CheckpointDamaged(PipelineError):
    code: ClassVar[str] = "pipeline.checkpoint-damaged"
    sink: str
    file: str
    problem: str

    def __str__(self) -> str:
        return (
            f"the checkpoint of sink '{self.sink}' cannot be read at {self.file}: {self.problem}. In mode mirror it can be "
            f"deleted while the pipeline is stopped: the sink knows how far it has got"
        )


@dataclass(eq=False, kw_only=True)
class BatchFailed(PipelineError):
    """Spark failed in a way that is not ours; the problem is its own sentence."""

    code: ClassVar[str] = "pipeline.batch-failed"
    sink: str
    problem: str
    log: str

    def __str__(self) -> str:
        return f"sink '{self.sink}': {self.problem} (details in {self.log})"


# Reading and writing with Spark ----------------------------------------------------------------


@dataclass(eq=False, kw_only=True)
class ConnectorError(PipelineError):
    """Base of what the connector can fail with."""

    code: ClassVar[str] = "spark"


@dataclass(eq=False, kw_only=True)
class OptionError(ConnectorError):
    """An option that is unknown, missing, or has a value that cannot be. The problem says what is allowed."""

    code: ClassVar[str] = "spark.option"
    option: str
    problem: str

    def __str__(self) -> str:
        return f"option '{self.option}': {self.problem}"


@dataclass(eq=False, kw_only=True)
class StreamMissing(ConnectorError):
    code: ClassVar[str] = "spark.stream-missing"
    stream: str
    url: str

    def __str__(self) -> str:
        return (
            f"there is no stream '{self.stream}' at {self.url}; create it with `tidemark stream create {self.stream}`, "
            f"or correct the option subscribe (or the virtual host in tidemark.url)"
        )


@dataclass(eq=False, kw_only=True)
class StreamPartitioned(ConnectorError):
    """The name is that of several streams, each with a history of its own: a source of a query reads one of them."""

    code: ClassVar[str] = "spark.stream-partitioned"
    stream: str
    partitions: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"'{self.stream}' is a partitioned stream ({len(self.partitions)}: {self.partitions[0]} …): read all of it with "
            f"tidemark_spark.read_partitioned(spark, url=…, stream='{self.stream}', streaming=…), or name one partition"
        )


@dataclass(eq=False, kw_only=True)
class GroupsDiffer(ConnectorError):
    """What is changed in one transaction lives in two groups of the cluster; a transaction is of one."""

    code: ClassVar[str] = "spark.groups-differ"
    stream: str
    group: str
    helper: str
    helper_group: str

    def __str__(self) -> str:
        return (
            f"'{self.stream}' lives in group '{self.group}', but '{self.helper}', which is changed in the same "
            f"transaction, in group '{self.helper_group}': is there a policy that sends it there? Exclude it, delete "
            f"'{self.helper}' and run this again"
        )


@dataclass(eq=False, kw_only=True)
class DataLost(ConnectorError):
    """Rows, deletes or a pinned snapshot that the query relies on are not there any more."""

    code: ClassVar[str] = "spark.data-lost"
    stream: str
    problem: str
    remedy: str

    def __str__(self) -> str:
        return (
            f"stream '{self.stream}': {self.problem}. {self.remedy}; or set failOnDataLoss=false to go on with what "
            f"is there"
        )


@dataclass(eq=False, kw_only=True)
class OffsetForeign(ConnectorError):
    """An offset in the checkpoint that this query cannot have written."""

    code: ClassVar[str] = "spark.offset-foreign"
    problem: str

    def __str__(self) -> str:
        return (
            f"the offset in the checkpoint cannot be used: {self.problem}. Each query needs a checkpointLocation of "
            f"its own, which goes with one stream"
        )


# The connector's sink ------------------------------------------------------------------------------


@dataclass(eq=False, kw_only=True)
class ColumnsRefused(ConnectorError):
    """The DataFrame does not have the columns that a stream is made of."""

    code: ClassVar[str] = "spark.columns-refused"
    stream: str
    problem: str

    def __str__(self) -> str:
        return (
            f"a DataFrame that is written to stream '{self.stream}' has the columns key and value (string or binary), and "
            f"if you like deleted (boolean) and headers (map of strings, or array of key/value structs): {self.problem}"
        )


@dataclass(eq=False, kw_only=True)
class RowsRefused(ConnectorError):
    """A row that cannot be stored. Nothing of its batch is."""

    code: ClassVar[str] = "spark.rows-refused"
    stream: str
    key: str
    problem: str

    def __str__(self) -> str:
        return (
            f"stream '{self.stream}' cannot take the row with key {self.key}: {self.problem}. Nothing of the batch was "
            f"written; correct it, or leave it out with a filter"
        )


@dataclass(eq=False, kw_only=True)
class BatchTooLarge(ConnectorError):
    """More than the broker stores in one piece, all or nothing."""

    code: ClassVar[str] = "spark.batch-too-large"
    stream: str
    rows: int
    size: int
    problem: str
    streaming: bool

    def __str__(self) -> str:
        smaller = (
            "set maxOffsetsPerTrigger (or maxBytesPerTrigger) on the source so that a micro-batch is smaller"
            if self.streaming
            else "write it with the option atomic=false, which stores it in pieces (readers may see some before the "
            "others), or as a stream with maxOffsetsPerTrigger"
        )
        return (
            f"{self.rows} rows ({self.size} bytes) for stream '{self.stream}' are too much for one all-or-nothing batch: "
            f"{self.problem}. Nothing was written; {smaller}, or raise broker.batch_bytes_max in the broker's configuration"
        )


@dataclass(eq=False, kw_only=True)
class WriterFenced(ConnectorError):
    """Another driver of the same query has gone on: this one must not write any more."""

    code: ClassVar[str] = "spark.writer-fenced"
    stream: str
    query: str
    batch: int
    newest: int

    def __str__(self) -> str:
        return (
            f"query {self.query} wants to write batch {self.batch} to stream '{self.stream}', which has its batch "
            f"{self.newest} already: another driver runs the same query, or its checkpoint was set back. Nothing was "
            f"written; stop this driver, or start with a new checkpoint"
        )


@dataclass(eq=False, kw_only=True)
class BrokerAway(ConnectorError):
    """Nobody answered for as long as we were told to try."""

    code: ClassVar[str] = "spark.broker-away"
    work: str
    """What was being done, as the beginning of a sentence: "writing stream 'orders'"."""
    waited_s: float
    problem: str

    def __str__(self) -> str:
        return (
            f"{self.work}: no broker answered for {self.waited_s:.0f} s ({self.problem}). Start it, or correct "
            f"tidemark.url, then run this again: it goes on where it was. To wait longer set retryTimeout"
        )
