# `make test` and `make demo` work on a fresh Debian 12 with make and python3-venv.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: install check lint types imports docs-check docs test test-soak

install: $(STAMP)

$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@

check: lint types imports

lint: $(STAMP)
	$(BIN)/ruff format --check flightwatch tests benchmarks
	$(BIN)/ruff check flightwatch tests benchmarks

types: $(STAMP)
	$(BIN)/mypy

imports: $(STAMP)
	$(BIN)/lint-imports

test: $(STAMP)
	$(BIN)/python -m pytest -m "not soak"

test-soak: $(STAMP)
	$(BIN)/python -m pytest -m soak --timeout 3600
