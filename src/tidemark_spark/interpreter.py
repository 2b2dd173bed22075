"""The Python that Spark starts its planners and workers with, three times as fast.

Spark puts `pyspark.zip` first on the path of its Python processes, and Python compiles what it imports from there anew in
each of them: more than a second of CPU, against 0.4 s from the installed package. A pipeline has one planner for each
sink, and Spark gives a planner ten seconds to start. So Spark is given a script as its Python that takes the archives
off the path and becomes the real interpreter, which finds the same package where the driver has found it.

Invariant: what runs in the end is the interpreter that was asked for, with everything else of its path as it was.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
from pathlib import Path

from tidemark_spark.java import install_script


def quick_python(python: str) -> str:
    """What to start instead of `python` on this machine; itself when there is nothing to gain."""
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None or not Path(found.origin).is_file():
        return python  # it is in an archive here, too
    if not os.access("/bin/sh", os.X_OK):
        return python
    text = (
        "#!/bin/sh\n"
        "kept=\n"
        "set -f\n"
        "IFS=:\n"
        "for part in $PYTHONPATH; do\n"
        "  case $part in */pyspark.zip|*/py4j-*-src.zip) ;; *) kept=$kept${kept:+:}$part ;; esac\n"
        "done\n"
        f'PYTHONPATH=$kept exec {shlex.quote(python)} "$@"\n'
    )
    return str(install_script("python", text))
