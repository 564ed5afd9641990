# The main commands are `make run` and `make test`. Both install everything first.
# PYTHON is the first Python 3.11 or later that is found. Choose another with `make PYTHON=/path/to/python`.
RECENT := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(firstword $(foreach p,python3 python3.11 python3.12 python3.13 python3.14 python,\
	$(shell command -v $(p) >/dev/null 2>&1 && $(p) -c '$(RECENT)' 2>/dev/null && echo $(p))))
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# PyTorch has an environment of its own, because it installs gigabytes of GPU libraries.
TORCH_VENV := .venv-torch
TORCH_STAMP := $(TORCH_VENV)/.installed
# numpyro has one too, because the library works without it.
NUMPYRO_VENV := .venv-numpyro
NUMPYRO_STAMP := $(NUMPYRO_VENV)/.installed
# The exact versions to install. Without a file, pip installs the newest versions.
CONSTRAINTS := constraints.txt
CONSTRAIN = $(addprefix -c ,$(CONSTRAINTS))
EXTRAS := experiments,dev
# Tests to run, such as `make test TESTS=tests/test_expectation.py`. Without a name, all fast tests run.
TESTS :=
PYTEST_FLAGS :=

.PHONY: install run test test-all test-lowest test-newest test-torch test-numpyro lint format bench docs docs-serve clean

install: $(STAMP)

$(STAMP): pyproject.toml $(CONSTRAINTS)
	@test -n "$(PYTHON)" || { echo "No Python 3.11 or later was found. Install one, or use make PYTHON=/path/to/python."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check $(CONSTRAIN) -e '.[$(EXTRAS)]'
	touch $@

run: $(STAMP)
	$(BIN)/python examples/digits.py

test: $(STAMP)
	$(BIN)/pytest -n 2 --dist loadfile -m 'not slow' $(PYTEST_FLAGS) $(TESTS)

# Runs all tests, compiled with the same flags as for users.
test-all: $(STAMP)
	XLA_FLAGS= $(BIN)/pytest -n 2 --dist loadfile

# The lowest versions that pyproject.toml allows. Old packages use what others have deprecated since.
test-lowest: lowest.txt
	$(MAKE) test VENV=.venv-lowest CONSTRAINTS=lowest.txt EXTRAS=experiments,tensorboard,test \
		PYTEST_FLAGS='-W ignore::DeprecationWarning'

# The newest versions that exist, in a new environment each time.
test-newest:
	rm -rf .venv-newest
	$(MAKE) test VENV=.venv-newest CONSTRAINTS= EXTRAS=experiments,tensorboard,test

# Each `name>=version` of pyproject.toml as `name==version`.
lowest.txt: pyproject.toml
	grep -oE '"[A-Za-z0-9-]+>=[0-9.]+' $< | sed -e 's/"//' -e 's/>=/==/' > $@

$(TORCH_STAMP): pyproject.toml $(CONSTRAINTS)
	@test -n "$(PYTHON)" || { echo "No Python 3.11 or later was found. Install one, or use make PYTHON=/path/to/python."; exit 1; }
	$(PYTHON) -m venv $(TORCH_VENV)
	$(TORCH_VENV)/bin/pip install --quiet --disable-pip-version-check $(CONSTRAIN) -e '.[torch,experiments,test]'
	touch $@

test-torch: $(TORCH_STAMP)
	$(TORCH_VENV)/bin/pytest -n 2 --dist loadfile tests/pytorch src/steingrad/torch

$(NUMPYRO_STAMP): pyproject.toml $(CONSTRAINTS)
	@test -n "$(PYTHON)" || { echo "No Python 3.11 or later was found. Install one, or use make PYTHON=/path/to/python."; exit 1; }
	$(PYTHON) -m venv $(NUMPYRO_VENV)
	$(NUMPYRO_VENV)/bin/pip install --quiet --disable-pip-version-check $(CONSTRAIN) -e '.[numpyro,test]'
	touch $@

test-numpyro: $(NUMPYRO_STAMP)
	$(NUMPYRO_VENV)/bin/pytest -n 2 --dist loadfile -m 'not slow' $(PYTEST_FLAGS) tests/numpyro_elbo src/steingrad/numpyro

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(STAMP)
	$(BIN)/python benchmarks/steps.py
	$(BIN)/python benchmarks/growth.py

docs: $(STAMP)
	$(BIN)/mkdocs build --strict

docs-serve: $(STAMP)
	$(BIN)/mkdocs serve

clean:
	rm -rf $(VENV) $(TORCH_VENV) $(NUMPYRO_VENV) .venv-lowest .venv-newest lowest.txt site .pytest_cache .ruff_cache
