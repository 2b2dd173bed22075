"""Builds every `*_c.pyx` under src/ as a compiled twin; everything else is in pyproject.toml."""

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


setup(
    ext_modules=cythonize(
        twins(),
        include_path=["src"],
        compiler_directives={
            "language_level": 3,
            "boundscheck": False,
            "wraparound": False,
            "cdivision": True,
            "initializedcheck": False,
            "freethreading_compatible": False,
        },
    )
)
