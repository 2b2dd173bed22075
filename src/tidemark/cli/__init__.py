"""The command `tidemark`. Each command is a thin function in a module of its own; what it needs is imported
when it runs, so that `--help` and `ctl` do not wait for the broker's code.

Invariant: an error on purpose is one sentence on standard error; 2 means that the call or a setting was wrong,
1 that the work failed.
"""

from __future__ import annotations

import sys
from typing import Any

from tidemark.errors import ConfigError, StoreForeign, StoreLocked, TidemarkError


class CommandError(Exception):
    """A command cannot do what it was asked; 2 says that the call was wrong, 1 that the work failed."""

    def __init__(self, sentence: str, code: int = 1) -> None:
        super().__init__(sentence)
        self.code = code


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    try:
        return _run(words)
    except CommandError as error:
        return _complain(str(error), error.code)
    except KeyboardInterrupt:
        return 130
    except (ConfigError, StoreLocked, StoreForeign) as error:
        return _complain(str(error), 2)
    except TidemarkError as error:
        return _complain(str(error), 1)
    except BrokenPipeError:
        # Whoever read our output has gone, as `head` does; there is nobody left to tell.
        sys.stderr.close()
        return 0


def _run(words: list[str]) -> int:
    if words[:1] == ["serve"]:
        from tidemark.cli import serve

        # A broker that starts again is waited for, and the parser takes a fifth of a second to import.
        call = serve.understood(words[1:])
        if call is not None:
            return serve.serve(call.file, call.flags, print_only=call.print_only)
    return _parse(words)


def _parse(words: list[str]) -> int:
    import typer

    from tidemark.cli.app import app

    # Typer brings the parser, click, as a dependency or inside itself, depending on its version; this is
    # its error for a call that is wrong either way.
    wrong_call: Any = typer.BadParameter.__mro__[1]
    assert wrong_call.__name__ == "UsageError"
    try:
        result = app(words, prog_name="tidemark", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except wrong_call as error:
        return _complain(_sentence(error), 2)
    except typer.Abort:
        return 130


def _sentence(wrong_call: Any) -> str:
    """What is wrong with a call, in our words where the parser has somebody else's."""
    found = getattr(wrong_call.__cause__, "errors", None)
    if found is None:
        return str(wrong_call.format_message())
    problem = found()[0]
    limits = problem.get("ctx", {})
    match problem["type"]:
        case "int_parsing" | "int_type" | "int_from_float" | "int_parsing_size":
            words = "is not a whole number"
        case "float_parsing" | "float_type":
            words = "is not a number"
        case "greater_than_equal":
            words = f"is less than {limits['ge']:g}"
        case "less_than_equal":
            words = f"is more than {limits['le']:g}"
        case "value_error":
            # The parser's own check; the prefix is not.
            return f"{_option(wrong_call.param)}: {problem['msg'].removeprefix('Value error, ').rstrip('.')}"
        case _:
            return str(wrong_call.format_message())
    return f"{_option(wrong_call.param)}: {problem['input']!r} {words}"


def _option(parameter: Any) -> str:
    """As it is written: the long form of an option, an argument in capitals."""
    if parameter.param_type_name == "option":
        return str(max(parameter.opts, key=len))
    return str(parameter.metavar or parameter.name.upper())


def _complain(sentence: str, code: int) -> int:
    print(f"tidemark: {sentence}", file=sys.stderr)
    return code
