# `make demo` and `make test` work on a machine that has Python 3.10 or newer and nothing else.
# The environment is .venv; it is installed again only when pyproject.toml or constraints.txt change.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
SOURCES_OF_VENV := pyproject.toml constraints.txt

# Each test process keeps to one thread: several processes that all use every core are slower than one. Byte code is kept
# even where the environment says otherwise: tests start the command hundreds of times, and compiling costs more than it.
WORKERS ?= auto
PYTEST_ENV := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=

.DEFAULT_GOAL := help
.PHONY: help demo test test-all lint docs clean pytest pytest-all

help:
	@echo "make demo   create $(VENV) and take one small model the whole way"
	@echo "make test   create $(VENV) with the development tools; lint, type check, run the tests"
	@echo "make test-all   the same with the repetitions that 'make test' leaves out: every pair of a model and a backend"
	@echo "make lint   the first half of 'make test'"
	@echo "make docs   build the documentation into site/"
	@echo "make clean  remove build results and caches ($(VENV) stays)"

demo: $(VENV)/.installed-demo
	$(BIN)/onnxqat demo

PYTEST := $(PYTEST_ENV) $(BIN)/python -m pytest -n $(WORKERS) --maxprocesses 4 --dist worksteal

# The type check runs beside the tests and not in front of them: it has one process, and a machine more cores.
test: $(VENV)/.installed-dev
	@$(MAKE) --no-print-directory -j 2 lint pytest

test-all: $(VENV)/.installed-dev
	@$(MAKE) --no-print-directory -j 2 lint pytest-all

pytest: $(VENV)/.installed-dev
	$(PYTEST) -m "not repetition"

pytest-all: $(VENV)/.installed-dev
	$(PYTEST)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/.installed-docs
	$(BIN)/mkdocs build --strict

clean:
	rm -rf build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage
	find onnxqat passes tests tools -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp and not bin/python: a venv whose creation failed half way has a bin/python too.
$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "onnxqat needs Python 3.10 or newer; choose one with: make PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
	  { echo "'$(PYTHON) -m venv' failed; some systems ship it as a package of its own (python3-venv)"; exit 1; }
	@touch $@

$(VENV)/.installed-%: $(VENV)/.created $(SOURCES_OF_VENV)
	@echo "installing into $(VENV): a few minutes, most of it for torch"
	@$(PIP) install --quiet -c constraints.txt -e '.[$*]'
	@touch $@

.PRECIOUS: $(VENV)/.installed-%
