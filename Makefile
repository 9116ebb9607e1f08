# Everything works on a fresh clone: each target makes .venv first when it is missing or pyproject.toml has changed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
MINIMUM := 3.11

# The tests start hundreds of processes; compiled modules spare each of them a part of its start.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo lab check test bench clean

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Cayu Lab needs Python $(MINIMUM) or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1)."; \
	  echo "Install a newer one and say which: make PYTHON=python3.12 demo"; exit 1; }
	@echo "Setting up $(VENV) (once; a minute or two) ..."
	@rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --editable '.[dev,lab,server,otel]'
	@touch $@

demo: $(STAMP)
	@$(BIN)/python -m cayu.examples.demo

lab: $(STAMP)
	@$(BIN)/jupyter lab --notebook-dir=notebooks

check: $(STAMP)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/python -m pytest -q -p no:nbmake -m "not slow and not exhaustive" -n auto --maxprocesses 4 --dist worksteal

test: check
	@$(BIN)/python -m pytest -q -m "slow or exhaustive"

bench: $(STAMP)
	@$(BIN)/python -m cayu.benchmarks.phase_timing --backend sqlite --rounds 50

clean:
	@rm -rf $(VENV) dist build .mypy_cache .pytest_cache .ruff_cache
