# Everything sets up .venv first when it is missing or older than what it is made from.
PYTHON ?= python3.11
BIN := .venv/bin

.PHONY: demo test test-fast lint docs bench sim clean

demo: .venv/ready
	@$(BIN)/cutwater demo

test: .venv/ready
	$(BIN)/pytest -n 2

test-fast: .venv/ready
	$(BIN)/pytest -n 2 -m "not slow"

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: .venv/ready
	$(BIN)/python -m cutwater.diagrams --write ARCHITECTURE.md

bench: .venv/ready
	$(BIN)/python -m bench.poll
	$(BIN)/python -m bench.quorum
	$(BIN)/python -m bench.replay
	$(BIN)/python -m bench.schedules

sim: .venv/ready
	$(BIN)/python -m cutwater.sim --seeds 1000

.venv/ready: pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "Python 3.11 or later is needed: install it (Debian: apt-get install python3.11 python3.11-venv) or say which one to use: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache
