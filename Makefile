# transduct: every command that a user or a contributor needs. Nothing but Python 3.11 or newer (with venv) is required.
#   make setup | test | test-fast | demo [MINUTES=7.5] | lint | format | types | docs | bench | clean

PYTHON ?= $(shell command -v python3.11 || command -v python3)
MINUTES ?= 7.5
WORKERS ?= 2
ARGS ?=

BIN := .venv/bin
STAMP := .venv/.transduct-setup
DEMO_STAMP := .venv/.transduct-setup-demo
PIP := $(BIN)/python -m pip
# Small models gain nothing from a second thread, and lose much where cores are shared.
ONE_THREAD := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false
OFFLINE := HF_HUB_OFFLINE=1
# A package whose published weights a test imports; its code is not run, so what that would need is left out.
WEIGHTS := annalog
BENCHMARKS := train_step train generate decode translate memory accumulation

.PHONY: setup test test-fast demo lint format types docs bench clean
.DEFAULT_GOAL := test

setup: $(STAMP)

$(DEMO_STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "transduct needs Python 3.11 or newer; choose one with make PYTHON=...")'
	$(PIP) --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear .venv
	$(PIP) install --disable-pip-version-check -c constraints.txt torch==2.13.0
	$(PIP) install --disable-pip-version-check -c constraints.txt -e '.[demo]'
	@touch $@

$(STAMP): $(DEMO_STAMP)
	$(PIP) install --disable-pip-version-check -c constraints.txt -e '.[demo,test,docs,dev]'
	$(PIP) install --disable-pip-version-check -c constraints.txt --no-deps $(WEIGHTS)
	@touch $@

test: setup
	$(ONE_THREAD) $(OFFLINE) $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup $(ARGS)

test-fast: setup
	$(ONE_THREAD) $(OFFLINE) $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup -m "not slow" $(ARGS)

demo: $(DEMO_STAMP)
	$(ONE_THREAD) $(OFFLINE) $(BIN)/transduct train examples/g2p/config.yaml --minutes $(MINUTES)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: setup
	$(BIN)/mypy

docs: setup
	$(OFFLINE) NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: setup
	@set -e; for name in $(BENCHMARKS); do echo "== $$name"; $(ONE_THREAD) $(OFFLINE) $(BIN)/python benchmarks/$$name.py; done

clean:
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
