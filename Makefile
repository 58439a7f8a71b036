# Everything a newcomer, a developer and a build server do. The two that matter: make quickstart, make test.
PYTHON ?= python3
VENV ?= .venv
# Where a CPU build of torch lies. Without it pip would take a build for GPUs, several gigabytes of it.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: setup quickstart test lint format bench clean

setup: $(STAMP)

$(STAMP): requirements/cpu.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "exgrpo needs Python 3.11 or newer: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-deps --retries 1 --extra-index-url $(TORCH_INDEX) $$(grep '^torch==' requirements/cpu.txt)
	$(BIN)/pip install --quiet --requirement requirements/cpu.txt
	$(BIN)/pip install --quiet --no-deps --editable .
	@touch $@

quickstart: setup
	$(BIN)/exgrpo quickstart

test: setup
	$(BIN)/python -m pytest --cov --cov-report=
	$(BIN)/coverage report --skip-covered
	$(BIN)/coverage report --include='src/exgrpo/experience/*,src/exgrpo/objective/*' --fail-under=95 --format=total

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup
	@for script in benchmarks/*.py; do $(BIN)/python $$script || exit 1; done

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage htmlcov
