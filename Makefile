# Two commands do everything on a fresh machine: `make demo` and `make test`. `make help` lists the rest.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PYTHONPATH := src
PYTEST := $(BIN)/python -m pytest

.PHONY: help setup services build demo test check quick test-pure sim kill once fuzz interop bench test-spark crash bench-spark bench-cluster docs clean

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade pip "setuptools>=77" "cython>=3.1"
	$(BIN)/python tools/requirements.py test check bench spark sinks avro declarative > $(VENV)/requirements.txt
	$(BIN)/python -m pip install -q -r $(VENV)/requirements.txt
	touch $@

build: $(VENV)/.ready
	@PYTHON=$(BIN)/python tools/build.sh
	@$(BIN)/python tools/install_editable.py

setup: build ## a virtual environment with everything, compiled modules built

services: ## the servers and tools that tests use (Debian packages, when root)
	@tools/services.sh

demo: setup ## orders over AMQP, Spark, three sinks, three brokers; everything killed once, all equal in the end
	@tools/services.sh etcd-server
	@$(BIN)/python examples/demo
	@$(BIN)/python examples/cluster

test: setup services check ## everything: checks, unit, contract, simulation, interop, kill -9, Spark: STAGES="unit sim"
	$(BIN)/python tools/test.py $(STAGES)

check: setup ## ruff, mypy --strict, lint-imports
	$(BIN)/ruff check src tests bench tools examples
	$(BIN)/ruff format --check src tests bench tools examples
	$(BIN)/mypy
	$(BIN)/lint-imports

quick: setup ## unit and contract tests only, under a minute
	$(PYTEST) tests/unit tests/contract -n 2

test-pure: setup ## the unit tests on the plain Python twins
	TIDEMARK_PURE=1 $(PYTEST) tests/unit -n 2

sim: setup ## stores, nodes, clusters and fronts on virtual time, and bugs planted in them: SEEDS=1000
	TIDEMARK_SIM_SEEDS=$${SEEDS:-1000} $(PYTEST) tests/sim -n 2

kill: setup services ## kill -9 in mixed traffic, of brokers and of members: ROUNDS=50
	TIDEMARK_KILL_ROUNDS=$${ROUNDS:-50} TIDEMARK_FAILOVER_ROUNDS=$${ROUNDS:-50} $(PYTEST) \
		tests/system/test_kill.py tests/system/test_stream_kill.py tests/system/cluster/test_failover.py \
		tests/system/cluster/test_contents.py

once: setup services ## many messages through a cluster of each mode, no faults: each comes once and in order: MESSAGES=1000000
	TIDEMARK_FAULT_FREE_MESSAGES=$${MESSAGES:-1000000} $(PYTEST) -s tests/system/cluster/test_fault_free.py

fuzz: setup ## the frame and table parsers: SECONDS=60
	$(BIN)/python tests/fuzz/fuzz_wire.py --seconds $${SECONDS:-60}

interop: setup services ## ordinary clients against the broker
	$(PYTEST) tests/interop -n 2 --dist loadfile

bench: setup services ## speed, with the peers in the same run: ARGS="--quick --case 'stream-*'"
	$(BIN)/python -m bench.run $(ARGS)

test-spark: setup services ## the connector, the sinks and the pipelines, with a real Spark
	$(BIN)/python tools/test.py sinks spark crash

crash: setup services ## everything of a pipeline killed under load: KILLS=200 SEED=1
	TIDEMARK_CRASH_KILLS=$(or $(KILLS),21) $(if $(SEED),TIDEMARK_CRASH_SEED=$(SEED)) $(PYTEST) tests/spark/crash -s

bench-spark: setup services ## the pipeline's speed beside Spark's own reader and a bare COPY: ARGS="--quick"
	$(BIN)/python -m bench.spark $(ARGS)

bench-cluster: setup services ## three nodes beside three of RabbitMQ and of NATS: publishing, failover, catch-up, growth: ARGS="--quick"
	$(BIN)/python -m bench.cluster $(ARGS)

docs: setup ## pages made from the code: configuration, errors, command line
	$(BIN)/python tools/make_docs.py

clean: ## everything that was built
	rm -rf $(VENV) build dist bench/bin tests/interop/node/node_modules
	find src -name '*_c.c' -delete -o -name '*.so' -delete
