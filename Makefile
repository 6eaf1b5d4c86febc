# `make demo` and `make test` set up everything that they need in .venv; nothing else has to be installed first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
RLLIB := .venv-rllib
RLLIB_PIP := $(RLLIB)/bin/python -m pip install --quiet --disable-pip-version-check --constraint $(RLLIB)/constraints.txt
RLLIB_TESTS := OMP_NUM_THREADS=1 $(RLLIB)/bin/python -m pytest -k rllib tests/adapters/test_rllib*.py tests/matrix/test_rows.py
export PIP_ROOT_USER_ACTION := ignore

.DEFAULT_GOAL := help
.PHONY: help demo test test-rllib check format bench matrix soak clean

help:
	@echo "make demo    watch a distributed training lose its learner, an actor and its newest checkpoint, and go on"
	@echo "make test    run all tests"
	@echo "make test-rllib  run the tests of RLlib, also the long ones that 'make test' leaves out"
	@echo "make check   format, lint, types, import rules"
	@echo "make bench   measure against the peers that are installed"
	@echo "make matrix  resume every algorithm and environment of every framework, and compare bit for bit"
	@echo "make soak    the long form of the durability proof"

# Torch goes in first and alone: any other package would pull another build of it.
$(VENV)/.torch: constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) "$$(grep '^torch==' constraints.txt)" "$$(grep '^numpy==' constraints.txt)"
	@touch $@

$(VENV)/.demo: $(VENV)/.torch pyproject.toml
	$(PIP) --editable '.[demo]'
	@touch $@

$(VENV)/.dev: $(VENV)/.demo pyproject.toml
	$(PIP) --editable '.[dev]'
	@touch $@

# Ray pins a Gymnasium that is older than the one of all the others, so it gets an environment of its own.
$(RLLIB)/.made: constraints.txt pyproject.toml
	$(PYTHON) -m venv $(RLLIB)
	grep -v '^gymnasium==' constraints.txt > $(RLLIB)/constraints.txt
	$(RLLIB_PIP) "$$(grep '^torch==' constraints.txt)" "$$(grep '^numpy==' constraints.txt)"
	$(RLLIB_PIP) --editable '.[rllib,test]'
	@touch $@

demo: $(VENV)/.demo
	$(BIN)/perdure demo

# Arguments choose among the tests of the first environment, so that a part of them never waits for the second one.
test: $(VENV)/.dev $(if $(PYTEST_ARGUMENTS),,$(RLLIB)/.made)
	$(BIN)/python -m pytest -n auto --dist worksteal $(PYTEST_ARGUMENTS)
	$(if $(PYTEST_ARGUMENTS),,$(RLLIB_TESTS) -m 'not long')

test-rllib: $(RLLIB)/.made
	$(RLLIB_TESTS) $(PYTEST_ARGUMENTS)

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check --output-format concise .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix --output-format concise .

bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks all

# Rows of frameworks that are not installed are left as they are. MATRIX_ARGUMENTS='--trial kill DQN' runs a part.
matrix: $(VENV)/.dev $(RLLIB)/.made
	OMP_NUM_THREADS=1 $(BIN)/python -m matrix --write $(MATRIX_ARGUMENTS)
	$(if $(MATRIX_ARGUMENTS),,OMP_NUM_THREADS=1 $(RLLIB)/bin/python -m matrix --write RLlib)

soak: $(VENV)/.dev
	PERDURE_TEST_PROFILE=soak $(BIN)/python -m pytest tests/durability $(PYTEST_ARGUMENTS)

clean:
	rm -rf $(VENV) $(RLLIB) runs demo-report
