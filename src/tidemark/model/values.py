"""Values of arguments and headers that plain Python types would confuse.

Peers write numbers in many widths. A value that came in another form than the plain one (bool, int, float,
str, bytes, list, dict, None) is a subclass that remembers it: it can be used like the plain one, goes out
as it came in, and is told from its neighbours where that matters (a headers exchange compares types too).

`to_json` and `from_json` write any of them as JSON for the catalog: plain values as they are, all others as
an object with the single key "$" and the name of the type.

Invariant: `from_json(to_json(v))` equals v and has its type, all the way down.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any


class Int8(int):
    __slots__ = ()


class UInt8(int):
    __slots__ = ()


class Int16(int):
    __slots__ = ()


class UInt16(int):
    __slots__ = ()


class UInt32(int):
    __slots__ = ()


class Int64(int):
    """A 64-bit number that would have fitted into 32; larger ones are plain `int`."""

    __slots__ = ()


class Timestamp(int):
    """Seconds since 1970, UTC, as the peer wrote them."""

    __slots__ = ()


class Float32(float):
    __slots__ = ()


class RawString(bytes):
    """A string that is not UTF-8."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Decimal:
    """`unscaled` divided by 10 to the power of `scale`."""

    scale: int
    unscaled: int


_NUMBERS: dict[str, type[int]] = {
    kind.__name__: kind for kind in (Int8, UInt8, Int16, UInt16, UInt32, Int64, Timestamp)
}


def to_json(value: Any) -> Any:
    """`value` in terms of what JSON has.

    Raises:
        TypeError: it is none of the values above.
    """
    kind = type(value)
    if kind in (bool, int, str) or value is None:
        return value
    if kind is float:
        # JSON has no infinity and no NaN, and 1.0 must not come back as 1.
        return {"$": "float", "of": value.hex()}
    if kind is Float32:
        return {"$": "Float32", "of": value.hex()}
    if kind is bytes or kind is RawString:
        return {"$": kind.__name__, "of": base64.b64encode(value).decode("ascii")}
    if kind is Decimal:
        return {"$": "Decimal", "of": [value.scale, value.unscaled]}
    if kind.__name__ in _NUMBERS and kind is _NUMBERS[kind.__name__]:
        return {"$": kind.__name__, "of": int(value)}
    if kind in (list, tuple):
        return [to_json(item) for item in value]
    if kind is dict:
        plain = {name: to_json(item) for name, item in value.items()}
        return {"$": "dict", "of": plain} if "$" in plain else plain
    raise TypeError(f"a {kind.__name__} has no place in the catalog")


def from_json(value: Any) -> Any:
    """What `to_json` wrote."""
    if isinstance(value, list):
        return [from_json(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "$" not in value:
        return {name: from_json(item) for name, item in value.items()}
    kind, of = value["$"], value["of"]
    match kind:
        case "dict":
            return {name: from_json(item) for name, item in of.items()}
        case "float":
            return float.fromhex(of)
        case "Float32":
            return Float32(float.fromhex(of))
        case "bytes":
            return base64.b64decode(of)
        case "RawString":
            return RawString(base64.b64decode(of))
        case "Decimal":
            return Decimal(*of)
        case _:
            return _NUMBERS[kind](of)
