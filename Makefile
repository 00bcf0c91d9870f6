# Two commands on a fresh Debian 12 (`apt-get install -y make python3-venv` first): `make demo` and `make test`.
PYTHON ?= python3
VENV   ?= .venv
# Workers of the tests: many wait for the processes that they start, so one more than there are cores.
WORKERS ?= $(shell cores=$$(nproc); echo $$((cores < 7 ? cores + 1 : 8)))
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check
# Debian packages that tests start: a browser, PostgreSQL and a Slurm controller. Tests that need an absent one skip and say so.
SYSTEM_PACKAGES := chromium postgresql slurmctld slurmd slurm-client munge

.PHONY: pictures detector-pictures help install install-dev system-packages demo demo-check test test-soak check lint types imports docs docs-check \
        bench-ingest bench-agent bench-latency bench-detect bench-training bench-console bench-alerts clean

help:
	@echo "make demo         this machine's sensors and a training job on a page and in SQL, data in ./.demo"
	@echo "make demo-check   start the demo, verify rows and page, stop it"
	@echo "make test         all tests, in WORKERS=N processes (make test-soak: long fuzz and kill runs)"
	@echo "make check        format, lint, types, import rules, generated docs"
	@echo "make docs         write the generated pages of docs/"
	@echo "make bench-ingest bench-agent bench-latency bench-detect bench-training bench-console bench-alerts   print the tables that README quotes"

# Installation -----------------------------------------------------------------------------------------------------

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.server: pyproject.toml | $(BIN)/python
	$(PIP) install --quiet -e '.[server,nvidia]'
	touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	$(PIP) install --quiet -e '.[dev]'
	touch $@ $(VENV)/.server

# The training tests run jobs with a torch of their own: the project itself never imports it.
$(VENV)-torch/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)-torch
	$(VENV)-torch/bin/python -m pip --disable-pip-version-check install --quiet torch==2.13.0 numpy
	$(VENV)-torch/bin/python -m pip --disable-pip-version-check install --quiet --no-deps -e .
	touch $@

install: $(VENV)/.server
install-dev: $(VENV)/.dev

# Debian packages are installed only where that is possible without asking: as root, with apt.
system-packages:
	@missing=""; for package in $(SYSTEM_PACKAGES); do \
	  dpkg -s $$package >/dev/null 2>&1 || missing="$$missing $$package"; done; \
	if [ -z "$$missing" ]; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing >/dev/null; \
	else echo "not installed (needs root and apt):$$missing; tests that need them will skip"; fi

# Demo -------------------------------------------------------------------------------------------------------------

demo demo-check: export FLIGHTWATCH_CONSOLE_PORT = $(or $(FLIGHTWATCH_PORT),8080)
demo: $(VENV)/.server
	$(BIN)/python -m flightwatch.cli up --data-dir .demo --demo

demo-check: $(VENV)/.server
	$(BIN)/python tests/demo_check.py

# Tests and checks ---------------------------------------------------------------------------------------------------

test: $(VENV)/.dev $(VENV)-torch/.installed system-packages
	$(BIN)/python -m pytest -m "not soak" -n $(WORKERS) --dist loadfile --no-loadscope-reorder

test-soak: $(VENV)/.dev system-packages
	$(BIN)/python -m pytest -m soak --timeout 3600

check: lint types imports docs-check

lint: $(VENV)/.dev
	$(BIN)/ruff format --check flightwatch tests benchmarks docs
	$(BIN)/ruff check flightwatch tests benchmarks docs

types: $(VENV)/.dev
	$(BIN)/mypy

imports: $(VENV)/.dev
	$(BIN)/lint-imports

docs: $(VENV)/.dev
	$(BIN)/python docs/build.py

pictures: $(VENV)/.dev system-packages
	$(BIN)/python docs/pictures.py

detector-pictures: $(VENV)/.dev
	PYTHONPATH=. MPLBACKEND=agg $(BIN)/python docs/detector_pictures.py

docs-check: $(VENV)/.dev
	$(BIN)/python docs/build.py --check

# Benchmarks -------------------------------------------------------------------------------------------------------

bench-ingest: $(VENV)/.dev
	$(BIN)/python -m benchmarks.ingest.run

bench-latency: $(VENV)/.dev
	$(BIN)/python -m benchmarks.ingest.latency

bench-agent: $(VENV)/.dev
	$(BIN)/python -m benchmarks.agent.run

bench-training: $(VENV)/.dev $(VENV)-torch/.installed
	$(BIN)/python -m benchmarks.training

bench-detect: $(VENV)/.dev
	$(BIN)/python -m benchmarks.detection

bench-console: $(VENV)/.dev system-packages
	$(BIN)/python -m benchmarks.console

bench-alerts: $(VENV)/.dev
	$(BIN)/python -m benchmarks.alerts

clean:
	rm -rf .demo out
