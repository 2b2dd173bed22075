"""One sink's part of a running pipeline: its query, restarted when that helps, until it is done or told to stop.

A `Delivery` has a thread that opens the sink, settles where to begin, starts the query and watches it. Spark calls
`_on_batch` from threads of its own; everything that touches the sink is done in one more thread, which the sink has
for itself. What a failed attempt leaves behind is thrown away: the next one opens the sink anew and asks it how far it has got.

Modes append and update apply the transformation to the stream itself, and see only its results. Rows that a
source's expectations reject are then written by a second query beside, with a checkpoint of its own.

Invariant: a batch is applied only after its dead letters are stored, and only while nobody has asked to stop before it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812

import tidemark.client
from tidemark_spark import own_session
from tidemark_spark.errors import (
    BatchFailed,
    DataLost,
    ExpectationFailed,
    SinkOfAnotherQuery,
    TransformationChanged,
    TransformationRefused,
)
from tidemark_spark.pipeline.changes import deliver, rejected_rows
from tidemark_spark.pipeline.checkpoint import (
    Checkpoint,
    Settlement,
    open_checkpoint,
    settle,
    starting_offsets,
)
from tidemark_spark.pipeline.deadletters import DeadLetterWriter, open_writer
from tidemark_spark.pipeline.decode import connector_columns, decoded
from tidemark_spark.pipeline.expectations import (
    DECODES,
    FAILED,
    Rejected,
    Verdict,
    judge,
    with_failures,
)
from tidemark_spark.pipeline.failures import UNKNOWN_TRIES, Backoff, Diagnosis, Hope, diagnose
from tidemark_spark.pipeline.file import AVAILABLE_NOW, Chain, Pipeline, SinkTable, Source, seconds
from tidemark_spark.pipeline.sinks import make_sink
from tidemark_spark.pipeline.tracking import State, Tracker
from tidemark_spark.pipeline.transform import (
    apply_steps,
    delivered_columns,
    source_view,
    wanted_columns,
)
from tidemark_spark.pipeline.values import KEY, SEQUENCE, Change, Mark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from tidemark_spark.pipeline.checkpoint import BatchOffsets
    from tidemark_spark.pipeline.sinks.sink import Sink

T = TypeVar("T")

COLUMN_TYPES = {
    "key": "BINARY",
    "value": "BINARY",
    "sequence": "BIGINT",
    "deleted": "BOOLEAN",
    "timestamp": "TIMESTAMP",
    "shard": "INT",
    "history": "STRING",
    "headers": "ARRAY<STRUCT<key: STRING, value: BINARY>>",
}
RETRY_TIMEOUT = "30s"
"""How long the connector waits for a broker that is away, before the query starts again."""
ONCE_PATIENCE_S = 120.0
POLL_S = 0.1
COMMIT_S = 3.0
START_S = 30.0
ASK_S = 10.0


class Stopped(Exception):
    """Nobody wants the next batch."""


class Delivery:
    def __init__(
        self,
        pipeline: Pipeline,
        table: SinkTable,
        session: SparkSession,
        tracker: Tracker,
        *,
        once: bool,
        accept_change: bool = False,
        log: str = "Spark's log",
        starts: threading.Semaphore | None = None,
    ) -> None:
        self.tracker = tracker
        self._starts = starts or threading.Semaphore()
        self._pipeline = pipeline
        self._table = table
        self._chain = pipeline.chain(table)
        self._session = session
        self._once = once or pipeline.trigger == AVAILABLE_NOW
        self._accept_change = accept_change
        self._log = log
        self._patience = pipeline.give_up_s or (ONCE_PATIENCE_S if self._once else None)
        self._stop, self._abort = threading.Event(), threading.Event()
        self._gate = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=f"delivery {table.name}", daemon=True)
        # Of the attempt that runs:
        self._backoff = Backoff()
        self._sink: Sink | None = None
        self._hands: ThreadPoolExecutor | None = None
        self._dead: DeadLetterWriter | None = None
        self._prepared = False
        self._error: BaseException | None = None
        self._last: tuple[Checkpoint, int] | None = None
        self._at_boundary = True
        self._goes_on = False
        """The attempt goes on with a checkpoint that was there."""
        self._forgets = False
        """The next attempt does not: what it relies on is gone."""

    # From outside -------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End with the batch that is being done, or at the next boundary, as the file says."""
        if not self.tracker.state.over:
            self.tracker.became(State.STOPPING)
        self._stop.set()

    def abort(self) -> None:
        """End now; what is not applied is done again next time."""
        self._abort.set()
        self._stop.set()

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for its end; whether it has ended."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # Attempts -----------------------------------------------------------------------------------

    def _run(self) -> None:
        since = time.monotonic()
        while True:
            try:
                before = self.tracker.status().batches
                self._attempt()
                self.tracker.became(State.STOPPED if self._stop.is_set() else State.DONE)
                return
            except Stopped:
                self.tracker.became(State.STOPPED)
                return
            except BaseException as error:
                if self._stop.is_set():
                    self.tracker.became(
                        State.STOPPED, error=None if self._abort.is_set() else _sentence(error)
                    )
                    return
                if self.tracker.status().batches > before:
                    since = time.monotonic()
                    self._backoff.succeeded()
                diagnosis = self._hope_for(diagnose(error))
                pause = self._backoff.failed()
                waited = time.monotonic() - since
                if (
                    diagnosis.hope is Hope.NONE
                    or (diagnosis.hope is Hope.UNKNOWN and self._backoff.failures >= UNKNOWN_TRIES)
                    or (self._patience is not None and waited + pause > self._patience)
                ):
                    self.tracker.became(State.FAILED, error=self._final(diagnosis))
                    return
                self.tracker.became(
                    State.RETRYING, error=diagnosis.sentence, note=f"tries again in {pause:.0f} s"
                )
                if self._stop.wait(pause):
                    self.tracker.became(State.STOPPED)
                    return
                self.tracker.became(State.STARTING)

    def _hope_for(self, diagnosis: Diagnosis) -> Diagnosis:
        """A mirror whose planned batch cannot be read again, because its pin is gone, may begin anew at its mark: if what it
        needs for that is gone, too, the new query says so."""
        self._forgets = diagnosis.name == "DataLost" and self._goes_on and self._table.mode == "mirror"
        return Diagnosis(Hope.UNKNOWN, diagnosis.sentence, diagnosis.name) if self._forgets else diagnosis

    def _final(self, diagnosis: Diagnosis) -> str:
        sentence = diagnosis.sentence
        if diagnosis.hope is Hope.PASSING:
            return (
                f"{sentence}; given up. Run the pipeline again when that has passed: it goes on where it was"
            )
        if diagnosis.hope is Hope.UNKNOWN:
            return str(BatchFailed(sink=self._table.name, problem=sentence, log=self._log))
        if diagnosis.name == "DataLost":
            return f"{sentence}. `tidemark pipeline reset FILE --sink {self._table.name} --drop` fills the sink anew"
        return sentence

    def _attempt(self) -> None:
        """Open, run, close: once."""
        self._error, self._prepared, self._last, self._goes_on = None, False, None, False
        table = self._table
        self._sink = make_sink(table.name, self._pipeline.name, table.kind, table.options)
        self._hands = ThreadPoolExecutor(1, thread_name_prefix=f"sink {table.name}")
        queries: list[StreamingQuery] = []
        try:
            mark = self._in_hands(self._sink.open)
            self.tracker.opened(mark)
            self._at_boundary = mark is None or mark.boundary
            self._check_change(mark)
            session = own_session(self._session)
            with self._starts:
                queries = self._start(session, mark)
                self._remember()
                self._await_start(queries)
            if self.tracker.state is State.STARTING:
                self.tracker.became(State.RUNNING)
            self._watch(queries)
        finally:
            for query in queries:
                _quietly(query.stop)
            _quietly(lambda: self._in_hands(self._sink.close) if self._sink else None)
            self._hands.shutdown(wait=False)
            if self._dead is not None:
                _quietly(self._dead.close)
                self._dead = None

    def _in_hands(self, work: Callable[..., T], *arguments: Any) -> T:
        """Do it in the sink's own thread."""
        assert self._hands is not None
        return self._hands.submit(work, *arguments).result()

    def _watch(self, queries: list[StreamingQuery]) -> None:
        while any(query.isActive for query in queries):
            if self._abort.is_set():
                raise Stopped
            if self._stop.is_set() and self._gate.acquire(blocking=False):
                # No batch is being done; one that comes now finds out by itself that nobody wants it. The gate must
                # be open again before the queries are stopped, for Spark waits for who waits there.
                try:
                    ending = self._may_end()
                    if ending:
                        self._await_commit()
                finally:
                    self._gate.release()
                if ending:
                    raise Stopped
            if self._error is not None or any(not query.isActive and query.exception() for query in queries):
                break
            self._stop.wait(POLL_S) if not self._stop.is_set() else time.sleep(POLL_S)
        if isinstance(self._error, Stopped):
            raise Stopped
        if self._error is not None:
            raise self._error
        for query in queries:
            if (problem := query.exception()) is not None:
                raise problem

    def _may_end(self) -> bool:
        return self._pipeline.stop == "batch" or self._at_boundary

    def _await_start(self, queries: list[StreamingQuery]) -> None:
        """Until Spark has started the processes of these queries: it gives each of them ten seconds."""
        end = time.monotonic() + START_S
        for query in queries:
            while (
                query.isActive
                and str(query.status["message"]).startswith("Initializing")
                and time.monotonic() < end
                and not self._stop.wait(0.05)
            ):
                pass

    def _await_commit(self) -> None:
        """Give Spark the moment that it needs to write down that the last batch is finished."""
        if self._last is None:
            return
        checkpoint, batch = self._last
        end = time.monotonic() + COMMIT_S
        while time.monotonic() < end and not checkpoint.is_finished(batch):
            time.sleep(0.02)

    # What the sink was made by ------------------------------------------------------------------

    def _check_change(self, mark: Mark | None) -> None:
        if mark is None or self._accept_change:
            return
        if set(mark.position) - {one.stream for one in self._chain.sources}:
            raise TransformationChanged(sink=self._table.name)
        file = self._pipeline.state / self._table.name / "made-by.json"
        try:
            stored = json.loads(file.read_text("utf-8"))["fingerprint"]
        except (OSError, ValueError, KeyError):
            return
        if stored != fingerprint(self._pipeline, self._chain, self._table):
            raise TransformationChanged(sink=self._table.name)

    def _check_stream(self, mark: Mark | None, source: Source) -> None:
        """The stream is the one that the sink was filled from. A checkpoint would tell; there may be none."""
        known = None if mark is None else mark.numbers.get(source.stream)
        if known is None or source.options.get("failOnDataLoss", "true").lower() == "false":
            return
        with tidemark.client.connect(source.url, timeout=ASK_S, name=f"pipeline {self._group()}") as db:
            number = db.stream(source.stream).info().facts["number"]
        if number != known:
            raise DataLost(
                stream=source.stream,
                problem="it was deleted and created again since the sink was filled from it",
                remedy="Rows of the stream that was before would stay in the sink",
            )

    def _remember(self) -> None:
        file = self._pipeline.state / self._table.name / "made-by.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        made_by = fingerprint(self._pipeline, self._chain, self._table)
        file.write_text(json.dumps({"fingerprint": made_by}), "utf-8")

    # Starting the query -------------------------------------------------------------------------

    def _start(self, session: SparkSession, mark: Mark | None) -> list[StreamingQuery]:
        checkpoint = self._checkpoint("checkpoint")
        if self._table.mode == "mirror":
            [source] = self._chain.sources
            self._check_stream(mark, source)
            start = self._settle(checkpoint, mark, source)
            frame = self._stream(session, source, self._group(), start)
            return [self._query(frame, "checkpoint", "", "append", self._mirror(checkpoint))]
        if mark is not None and checkpoint.query() is None:
            # Found before the query makes a checkpoint of its own.
            raise SinkOfAnotherQuery(
                pipeline=self._pipeline.name, sink=self._table.name, stored=mark.query, query="new"
            )
        frames = {
            source.name: self._stream(session, source, self._group(source.name), "earliest")
            for source in self._chain.sources
        }
        views = {source.name: self._live(frames[source.name], source) for source in self._chain.sources}
        result = apply_steps(session, self._pipeline, self._chain, views, self._table.reads)
        names = delivered_columns(result.frame, mirror=False, step=f"[[sink]] '{self._table.name}'")
        check_streaming_expectations(self._chain)
        frame = result.frame.select(*(F.col(f"`{name}`") for name in names))
        queries = []
        try:
            queries.append(self._query(frame, "checkpoint", "", self._table.mode, self._results(checkpoint)))
            for source in self._chain.sources:
                if rejects(self._chain, source):
                    role = f"rejected-{source.name}"
                    aside = self._stream(session, source, self._group(role), "earliest")
                    work = self._rejects(self._checkpoint(role), source)
                    queries.append(self._query(aside, role, f".{role}", "append", work))
        except BaseException:
            for query in queries:
                _quietly(query.stop)
            raise
        return queries

    def _checkpoint(self, role: str) -> Checkpoint:
        folder = self._pipeline.checkpoint(self._table.name, role)
        return open_checkpoint(self._table.name, folder, self._session)

    def _group(self, role: str = "") -> str:
        return self._pipeline.consumer(self._table.name, role)

    def _settle(self, checkpoint: Checkpoint, mark: Mark | None, source: Source) -> str:
        """Where the query of a mirror begins when it has no checkpoint; one that does not meet the sink is removed."""
        if mark is not None and mark.mode != "mirror":
            # Before anything is removed: the checkpoint holds what those results are made of.
            raise SinkOfAnotherQuery(
                pipeline=self._pipeline.name, sink=self._table.name, stored=mark.query, query="new"
            )
        if self._forgets or settle(mark, checkpoint) is not Settlement.CONTINUE:
            checkpoint.remove()
            self._forgets = False
        self._goes_on = checkpoint.query() is not None
        return "earliest" if mark is None else starting_offsets(mark, source.stream)

    def _stream(self, session: SparkSession, source: Source, group: str, start: str) -> DataFrame:
        columns = connector_columns(wanted_columns(self._chain))
        reader = session.readStream.format("tidemark").schema(
            ", ".join(f"{name} {COLUMN_TYPES[name]}" for name in columns)
        )
        options = {
            "tidemark.url": source.url,
            "subscribe": source.stream,
            "groupId": group,
            "startingOffsets": start,
            "maxOffsetsPerTrigger": str(self._most("batch_rows_max", self._pipeline.max_rows_per_batch)),
            "maxBytesPerTrigger": str(self._most("batch_bytes_max", self._pipeline.max_bytes_per_batch)),
            "retryTimeout": RETRY_TIMEOUT,
        }
        if "headers" in columns:
            options["includeHeaders"] = "true"
        return reader.options(**(options | dict(source.options))).load()

    def _most(self, bound: str, said: int) -> int:
        """What a batch may have: what the file says, or less if the sink takes less."""
        return min(said, getattr(self._sink, bound, said))

    def _query(
        self,
        frame: DataFrame,
        role: str,
        suffix: str,
        output: str,
        work: Callable[[DataFrame, int], None],
    ) -> StreamingQuery:
        writer = (
            frame.writeStream.foreachBatch(self._guarded(work))
            .option("checkpointLocation", self._pipeline.checkpoint(self._table.name, role))
            .queryName(f"{self._group()}{suffix}")
            .outputMode(output)
        )
        if self._once:
            return writer.trigger(availableNow=True).start()
        pause_ms = round((seconds(self._pipeline.trigger) or 0) * 1000)
        return writer.trigger(processingTime=f"{pause_ms} milliseconds").start()

    def _live(self, frame: DataFrame, source: Source) -> DataFrame:
        """A source's view for a streaming transformation; a row that may not fail stops the query."""
        rows = decoded(frame, source, wanted_columns(self._chain))
        checked = with_failures(rows, source.name, self._chain.expectations, source=True)
        fatal = [
            one.name for one in self._chain.expectations if one.on == source.name and one.otherwise == "fail"
        ]
        if source.otherwise == "fail":
            fatal.append(DECODES)
        if fatal:
            names = F.array(*(F.lit(name) for name in fatal))
            text = F.concat(
                F.lit(f"an expectation on '{source.name}' fails ("),
                F.array_join(F.col(FAILED), ", "),
                F.lit(") for the row at sequence "),
                F.col(SEQUENCE).cast("string"),
            )
            checked = checked.withColumn(
                FAILED,
                F.when(
                    F.coalesce(F.arrays_overlap(F.col(FAILED), names), F.lit(False)),
                    F.raise_error(text).cast("array<string>"),
                ).otherwise(F.col(FAILED)),
            )
        return source_view(checked)

    # Batches ------------------------------------------------------------------------------------

    def _guarded(self, work: Callable[[DataFrame, int], None]) -> Callable[[DataFrame, int], None]:
        def on_batch(frame: DataFrame, batch: int) -> None:
            with self._gate:
                try:
                    if self._abort.is_set() or (self._stop.is_set() and self._may_end()):
                        raise Stopped
                    work(frame, batch)
                    self._backoff.succeeded()
                except BaseException as error:
                    self._error = error
                    raise

        return on_batch

    def _mirror(self, checkpoint: Checkpoint) -> Callable[[DataFrame, int], None]:
        [source] = self._chain.sources

        def work(frame: DataFrame, batch: int) -> None:
            began = time.monotonic()
            found = deliver(frame, self._pipeline, self._table, self._chain)
            query = checkpoint.owner()
            verdict = self._judged(found.rejected)
            if verdict.dead:
                self._letters().write(self._rejecting(query), batch, source.stream, verdict.dead)
            offsets = checkpoint.batch(batch)
            mark = self._mark(query, batch, offsets, found.rows)
            change = Change(mark=mark, start=offsets.start, upserts=found.upserts, deletes=found.deletes)
            self._apply(change, checkpoint, began, len(verdict.dead), verdict.dropped)

        return work

    def _results(self, checkpoint: Checkpoint) -> Callable[[DataFrame, int], None]:
        def work(frame: DataFrame, batch: int) -> None:
            began = time.monotonic()
            rows = frame.toArrow()
            offsets = checkpoint.batch(batch)
            mark = self._mark(checkpoint.owner(), batch, offsets, rows.num_rows)
            none = pa.table({KEY: pa.array([], pa.string()), SEQUENCE: pa.array([], pa.int64())})
            self._apply(Change(mark=mark, start={}, upserts=rows, deletes=none), checkpoint, began, 0, 0)

        return work

    def _rejects(self, checkpoint: Checkpoint, source: Source) -> Callable[[DataFrame, int], None]:
        def work(frame: DataFrame, batch: int) -> None:
            found = rejected_rows(frame, source, self._chain)
            lenient = [one for one in found if not _fatal(one.failed, source, self._chain)]
            verdict = self._judged(lenient)
            if verdict.dead:
                query = self._rejecting(checkpoint.owner())
                self._letters().write(query, batch, source.stream, verdict.dead)
            self.tracker.set_aside(len(verdict.dead), verdict.dropped)

        return work

    def _judged(self, rejected: Sequence[Rejected]) -> Verdict:
        """What becomes of rejected rows; the one that decides is kept to be shown. Raises ExpectationFailed."""
        try:
            verdict = judge(rejected, self._chain.sources, self._chain.expectations, self._table.name)
        except ExpectationFailed as error:
            for row in rejected:
                if row.sequence == error.sequence:
                    self.tracker.rejected(row.to_json())
            raise
        if rejected:
            self.tracker.rejected(max(rejected, key=lambda one: one.sequence).to_json())
        return verdict

    def _mark(self, query: str, batch: int, offsets: BatchOffsets, rows: int) -> Mark:
        return Mark(
            pipeline=self._pipeline.name,
            sink=self._table.name,
            mode=self._table.mode,
            query=query,
            batch=batch,
            position=offsets.end,
            boundary=offsets.boundary,
            rows=rows,
            at_ms=time.time_ns() // 1_000_000,
            numbers=offsets.numbers,
        )

    def _apply(
        self, change: Change, checkpoint: Checkpoint, began: float, dead_letters: int, dropped: int
    ) -> None:
        sink = self._sink
        assert sink is not None
        if not self._prepared:
            self._in_hands(sink.prepare, change.upserts.schema, self._table.mode)
            self._prepared = True
        done = self._in_hands(sink.apply, change)
        self._last, self._at_boundary = (checkpoint, change.mark.batch), change.mark.boundary
        self.tracker.applied(change.mark, done, began=began, dead_letters=dead_letters, dropped=dropped)

    def _rejecting(self, query: str) -> str:
        """Who rejects rows: the query, with the expectations that it has now."""
        return f"{query}.{fingerprint(self._pipeline, self._chain, self._table)[:8]}"

    def _letters(self) -> DeadLetterWriter:
        target = self._pipeline.dead_letters
        assert target is not None, "the file is checked for that"
        if self._dead is None:
            self._dead = open_writer(target.url, target.stream, self._pipeline.name, self._table.name)
        return self._dead


def rejects(chain: Chain, source: Source) -> bool:
    """Whether rows of a source may become dead letters."""
    return source.otherwise == "dead-letter" or any(
        one.on == source.name and one.otherwise == "dead-letter" for one in chain.expectations
    )


def check_streaming_expectations(chain: Chain) -> None:
    """Results of a streaming transformation are no rows of the stream: they cannot be dead letters.

    Raises:
        TransformationRefused
    """
    steps = {one.name for one in chain.transforms}
    for one in chain.expectations:
        if one.on in steps and one.otherwise == "dead-letter":
            raise TransformationRefused(
                step=f"[[expect]] '{one.name}' otherwise",
                problem=f"in the modes append and update rows of the transform '{one.on}' have no place in the stream; write "
                f'"drop" or "fail", or expect it of a source',
            )
        if one.on in steps and one.otherwise == "fail":
            raise TransformationRefused(
                step=f"[[expect]] '{one.name}' otherwise",
                problem=f"in the modes append and update an expectation on the transform '{one.on}' can only \"drop\"; use "
                f"assert_true or raise_error in its SQL to stop, or expect it of a source",
            )


def fingerprint(pipeline: Pipeline, chain: Chain, table: SinkTable) -> str:
    """What a sink's rows are made by: equal fingerprints make equal rows of equal streams."""
    facts: list[Any] = [table.mode, table.reads]
    facts += [[one.name, one.stream, one.value, one.schema, one.key, one.otherwise] for one in chain.sources]
    for one in chain.transforms:
        source = ""
        if one.python is not None:
            file = pipeline.folder.joinpath(*one.python.partition(":")[0].split(".")).with_suffix(".py")
            source = file.read_text("utf-8") if file.exists() else ""
        facts.append([one.name, " ".join((one.sql or "").split()), one.python, source, one.reads])
    facts += [[one.name, one.on, one.check, one.otherwise] for one in chain.expectations]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]


def _fatal(failed: tuple[str, ...], source: Source, chain: Chain) -> bool:
    rules = {one.name: one.otherwise for one in chain.expectations if one.on == source.name}
    return any((rules | {DECODES: source.otherwise}).get(name) == "fail" for name in failed)


def _sentence(error: BaseException) -> str:
    return diagnose(error).sentence


def _quietly(work: Callable[[], Any]) -> None:
    with contextlib.suppress(Exception):  # it is over anyway
        work()
