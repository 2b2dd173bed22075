"""Builds every `*_c.pyx` under src/ as a compiled twin; everything else is in pyproject.toml."""

import os
import sys
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup


def twins() -> list[Extension]:
    found = []
    for path in sorted(Path("src").rglob("*_c.pyx")):
        name = ".".join(path.with_suffix("").relative_to("src").parts)
        found.append(
            Extension(
                name,
                [str(path)],
                include_dirs=["src/tidemark/model"],
                extra_compile_args=["-O2", "-g0", "-fno-strict-aliasing"],
                extra_link_args=["-pthread"],
            )
        )
    return found


# A source archive and its metadata hold no compiled code: MANIFEST.in names the sources.
PACKING = bool({"sdist", "egg_info", "dist_info"} & set(sys.argv))

setup(
    options={"build_ext": {"parallel": os.cpu_count()}},
    ext_modules=cythonize(
        [] if PACKING else twins(),
        include_path=["src"],
        compiler_directives={
            "language_level": 3,
            "boundscheck": False,
            "wraparound": False,
            "cdivision": True,
            "initializedcheck": False,
            "freethreading_compatible": False,
        },
    ),
)
