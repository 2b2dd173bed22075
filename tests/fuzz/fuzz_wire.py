"""Fuzz target for everything that reads bytes from a client.

    python tests/fuzz/fuzz_wire.py --seconds 60 --seed 1
    python tests/fuzz/fuzz_wire.py --replay 0a1b...

Each input is read by the compiled scanner and by its reference, cut into reads of several sizes,
and by every decoder alone. The two must agree, a decoder may raise nothing but its own errors, and
what it accepts must survive being written and read again. With atheris installed the inputs are
guided by coverage; else they are good streams, properties, tables and methods that were spoiled by
dice. A failing input is printed with the command that replays it; the exit code is then 1.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Callable
from random import Random
from typing import Any

from wire_streams import FRAME_MAX, scan, some_cuts, some_frames, some_properties, some_stream, spoiled

from tidemark.errors import ContentTooLarge, FrameError, SyntaxFault
from tidemark.frontend.stream.batches import Allowance, decode
from tidemark.frontend.stream.config import StreamConfig
from tidemark.frontend.stream.fields import Fields
from tidemark.wire.amqp091 import _scanner_c, _scanner_py, methods, sasl, tables
from tidemark.wire.amqp091.properties import decode_properties, encode_properties
from tidemark.wire.stream.frames import FrameReader

CUTS: tuple[tuple[int, ...], ...] = ((), (1,) * 64, (7, 100, 8, 3000))
DISCARDS = (1, 0, 2, 0, 1)


def check(data: bytes) -> None:
    """Raise AssertionError if anything about these bytes is not as it should be."""
    check_scanners(data)
    survives(data, methods.decode_method, lambda it: methods.encode_method(1, it)[7:-1])
    survives(data, decode_properties, encode_properties)
    survives(data, tables.decode_entries, lambda it: tables.encode_table(it)[4:])
    for mechanism in sasl.MECHANISMS:
        survives(data, lambda raw, name=mechanism: sasl.read_response(name, raw), None)  # type: ignore[misc]
    assert inspected(_scanner_c, data) == inspected(_scanner_py, data)
    check_frames(data)


def check_frames(data: bytes) -> None:
    """The stream protocol: the same frames however they are cut, and rows that are read or refused."""
    read = [frames_of(data, cuts) for cuts in CUTS]
    assert all(one == read[0] for one in read), f"frames depend on the cuts: {read}"
    for header, payload in read[0][0]:
        try:
            for batch in decode(Fields(header, "fuzz"), payload, Allowance(StreamConfig())):
                assert len(list(batch)) == batch.count
        except (SyntaxFault, ContentTooLarge):
            pass


def frames_of(data: bytes, cuts: tuple[int, ...]) -> tuple[list[tuple[dict[str, Any], bytes]], str]:
    reader, found = FrameReader(1 << 20), []
    try:
        for cut in (*cuts, len(data)):
            for frame in reader.feed(data[:cut]):
                found.append((frame.header, bytes(frame.payload)))
            data = data[cut:]
    except FrameError as error:
        return found, str(error)
    return found, ""


def check_scanners(data: bytes) -> None:
    # The last byte chooses the limits, so that an input is all there is to replay.
    choice = data[-1] if data else 0
    limits = (
        (FRAME_MAX, 64, 0)[choice % 3],
        (20_000, 50, 0)[choice // 3 % 3],
        (65535, 2)[choice // 9 % 2],
    )
    for cuts in CUTS:
        ours = scan(_scanner_c.Scanner(*limits), data, cuts, DISCARDS)
        theirs = scan(_scanner_py.Scanner(*limits), data, cuts, DISCARDS)
        assert ours == theirs, f"cut into {cuts}: compiled {ours} but reference {theirs}"


def survives(data: bytes, decode: Callable[[bytes], Any], encode: Callable[[Any], bytes] | None) -> None:
    try:
        value = decode(data)
    except (SyntaxFault, methods.UnknownMethod):
        return
    if encode is not None:
        # Compared as bytes: a float may be one that does not equal itself.
        once = encode(value)
        assert encode(decode(once)) == once, f"{value!r} does not survive"


def inspected(module: Any, data: bytes) -> Any:
    try:
        return module.inspect_properties(data)
    except SyntaxFault as error:
        return str(error)


# Where inputs come from ------------------------------------------------------------------------


def some_input(dice: Random) -> bytes:
    match dice.randrange(9):
        case 6 | 7 | 8:
            return spoiled(dice, some_frames(dice))
        case 0:
            return spoiled(dice, some_properties(dice))
        case 1:
            form = dice.choice(list(methods.FORMS.values()))
            frame = methods.encode_method(1, form.kind())
            return spoiled(dice, frame[7:-1])
        case 2:
            raw = some_properties(dice)
            return spoiled(dice, raw[2:] or b"\x01aI\x00\x00\x00\x01")
        case 3:
            return bytes(dice.choice(b"\x00\x01\x08\xceFAStlx") for _ in range(dice.randint(0, 60)))
    stream = some_stream(dice, length=dice.choice([2, 8]))
    cut = sum(some_cuts(dice, 1))
    return spoiled(dice, stream[: max(cut, len(stream) // 2)] if dice.random() < 0.2 else stream)


def fuzz_by_dice(seconds: float, seed: int) -> int:
    dice = Random(seed)
    tried, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        data = some_input(dice)
        try:
            check(data)
        except Exception:
            report(data)
            return 1
        tried += 1
    print(f"{tried} inputs in {seconds:.0f} s, seed {seed}: nothing found")
    return 0


def report(data: bytes) -> None:
    traceback.print_exc()
    print(f"failing input: {data.hex()}")
    print(f"replay with:   python tests/fuzz/fuzz_wire.py --replay {data.hex() or 'empty'}")


def fuzz_by_coverage(atheris: Any, seconds: float, seed: int) -> None:
    def target(data: bytes) -> None:
        try:
            check(data)
        except Exception:
            report(data)
            raise

    atheris.instrument_all()
    atheris.Setup([sys.argv[0], f"-max_total_time={seconds:.0f}", f"-seed={seed}"], target)
    atheris.Fuzz()


def main() -> int:
    parser = argparse.ArgumentParser(description="Fuzz everything that reads bytes from a client.")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--replay", metavar="HEX", help="check one input instead")
    arguments = parser.parse_args()
    if arguments.replay is not None:
        check(bytes.fromhex("" if arguments.replay == "empty" else arguments.replay))
        print("this input is fine")
        return 0
    try:
        import atheris  # type: ignore
    except ImportError:
        return fuzz_by_dice(arguments.seconds, arguments.seed)
    fuzz_by_coverage(atheris, arguments.seconds, arguments.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
