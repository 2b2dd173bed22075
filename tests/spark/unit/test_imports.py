"""What importing the connector brings along: Spark imports it in processes that do nothing else with it."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["tidemark_spark", "pyspark_tidemark"])
def test_importing_the_connector_brings_neither_arrow_nor_pipelines_nor_the_broker(module: str) -> None:
    program = f"""
import sys, pyspark.sql.datasource
before = set(sys.modules)
import {module}
found = set(sys.modules) - before
heavy = ("pyarrow", "pandas", "numpy", "tidemark_spark.pipeline", "tidemark.broker", "tidemark.store", "tidemark.node")
print([name for name in found if name in heavy or name.startswith("pyspark.")])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
