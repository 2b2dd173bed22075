#!/bin/sh
# Builds the compiled modules in place. A lock keeps two builds from treading on each other.
cd "$(dirname "$0")/.." || exit 1
mkdir -p build
exec flock build/.lock "${PYTHON:-.venv/bin/python}" setup.py -q build_ext --inplace -j2
