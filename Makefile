# Everything sets up .venv first when it is missing or older than what it is made from.
PYTHON ?= python3.11
BIN := .venv/bin

.PHONY: demo demo-cluster test test-fast test-faults lint docs bench sim tools java clean

demo: .venv/ready java
	@$(BIN)/cutwater demo

demo-cluster: .venv/ready java
	@$(BIN)/cutwater demo-cluster

test: .venv/ready java
	$(BIN)/pytest -n 2 --dist loadgroup -m "not faults"

test-fast: .venv/ready
	$(BIN)/pytest -n 2 -m "not slow"

# Every place at which a process can be killed, times every kind of pipeline: about an hour.
test-faults: .venv/ready java
	$(BIN)/pytest -m faults

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: .venv/ready
	$(BIN)/python -m cutwater.diagrams --write ARCHITECTURE.md

bench: .venv/ready
	$(BIN)/python -m bench.poll
	$(BIN)/python -m bench.quorum
	$(BIN)/python -m bench.takeover
	$(BIN)/python -m bench.replay
	$(BIN)/python -m bench.schedules
	$(BIN)/python -m bench.overhead
	$(BIN)/python -m bench.checkpoint
	$(BIN)/python -m bench.snapshot
	$(BIN)/python -m bench.restore
	$(BIN)/python -m bench.epochs

sim: .venv/ready
	$(BIN)/python -m cutwater.sim --seeds 1000

# An S3 server for the tests that need one; without it they are skipped, and say so. Needs Go.
tools:
	GOBIN=$(CURDIR)/.tools/bin go install github.com/versity/versitygw/cmd/versitygw@v1.8.0

java:
	@command -v java >/dev/null || [ -n "$$JAVA_HOME" ] || { echo "Spark needs Java 17 or later: install it (Debian: apt-get install openjdk-17-jre-headless; macOS: brew install openjdk@17) or set JAVA_HOME"; exit 1; }

.venv/ready: pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "Python 3.11 or later is needed: install it (Debian: apt-get install python3.11 python3.11-venv) or say which one to use: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache
