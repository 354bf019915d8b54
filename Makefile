# The one way in, for people and for CI. Every target does its own set-up.
SHELL := /bin/bash
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo orders test check bench faults simulate soak services mutants docs lock clean java help

help:
	@echo "make demo   run Zeitgeist: four simulated weeks of queries, spikes and dips found in them"
	@echo "make orders  orders change in PostgreSQL; a Kafka topic and a view in PostgreSQL follow, with servers of its own"
	@echo "make test   the tests; those that take long are in make soak"
	@echo "make check  lint, types, and the file of mistakes that both type checkers must refuse"
	@echo "make bench  timings as ratios to Spark SQL and transformWithState in the same run"
	@echo "make faults  kill -9 at every named point, then dozens at random; drivers that wake up when another has taken over"
	@echo "make simulate  planner, lanes, journal and ends under seeds, without Spark (SEEDS=1000)"
	@echo "make soak   the faults that take long; then kill -9 again and again, checked all the time, then new seeds of the simulation (SOAK_SECONDS=300 each)"
	@echo "make services  a Kafka broker and a PostgreSQL server on loopback, to try deliveries with, until Ctrl-C"
	@echo "make docs   the site of the documents, in site/"
	@echo "make mutants  break the product on purpose, and show which test notices"

$(READY): requirements.lock pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "Python 3.11 is needed and $(PYTHON) is not there. Install it, or say make PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $(READY)

java:
	@{ [ -n "$$JAVA_HOME" ] && [ -x "$$JAVA_HOME/bin/java" ]; } || command -v java >/dev/null || { \
	  echo "Java 17 is needed and was not found. Install it (Debian, Ubuntu: apt install openjdk-17-jre-headless;"; \
	  echo "macOS: brew install openjdk@17), or set JAVA_HOME to where it is."; exit 1; }

demo: java $(READY)
	$(BIN)/millstream demo

orders: java $(READY)
	$(BIN)/python -m examples.orders

test: java $(READY)
	$(BIN)/python -m pytest $(PYTEST_OPTIONS)

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tests/typing/check.py

bench: java $(READY)
	$(BIN)/python -m bench

faults: java $(READY)
	$(BIN)/python -m pytest -m soak tests/spark/test_crash_points.py tests/spark/test_kills.py tests/spark/test_two_drivers.py \
	  tests/spark/test_away.py tests/spark/test_ways.py \
	  tests/spark/test_services.py::test_runs_brokers_and_servers_that_die_lose_nothing_and_double_nothing \
	  tests/spark/test_both_ends.py::test_runs_brokers_and_servers_that_die_at_either_end \
	  tests/spark/test_cluster.py::test_an_executor_that_dies_in_an_epoch_costs_its_lanes_a_retry

services: java $(READY)
	$(BIN)/python -m tests.services

simulate: $(READY)
	$(BIN)/python -m tests.simulation --seeds $${SEEDS:-1000}

soak: java $(READY)
	$(BIN)/python -m pytest -m soak
	$(BIN)/python -m tests.soak --seconds $${SOAK_SECONDS:-300}
	$(BIN)/python -m tests.simulation --first $$RANDOM$$RANDOM --seeds 1000000 --seconds $${SOAK_SECONDS:-300}

mutants: $(READY)
	$(BIN)/python -m tests.mutants

docs: $(READY)
	$(BIN)/python docs/assemble.py build/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "built: site/index.html; its search needs a server: $(BIN)/python -m http.server --bind 127.0.0.1 --directory site"

lock:
	uv pip compile --quiet --python-version 3.11 --generate-hashes --no-emit-index-url --extra demo --extra dev --extra docs \
	  --no-header pyproject.toml -o requirements.lock

clean:
	rm -rf $(VENV) demo build dist site
