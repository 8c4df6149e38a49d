# Everything runs in .venv, built from constraints.txt with any Python from 3.11 to 3.13.
PYTHON ?= $(shell for p in python3 python3.11 python3.12 python3.13; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null && echo $$p && break; done)
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --constraint constraints.txt
INPUTS := pyproject.toml constraints.txt Makefile
WORKERS ?= 2
# Without a CPU build of torch at hand: EXTRAS=sim,client,server,report,drift,dev, and the tests of torch are skipped.
EXTRAS ?= torch,sim,client,server,report,drift,dev

# Hundreds of processes start in the tests and benchmarks: none should compile again what another one has. Most of what is
# installed is never imported, so that nothing is compiled before it is (--no-compile).
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install demo docs test test-heavy test-heavy-quick test-ray test-newest test-all reliability check format bench bench-w1 bench-simulator bench-service bench-capacity bench-drift bench-page screenshots constraints clean

help:
	@echo "make demo         see it work (builds its environment first)"
	@echo "make test         run the tests, without those of whole processes (a few minutes)"
	@echo "make test-all     run everything, however long: all of the above, whole processes, full counts, Ray"
	@echo "make test-heavy   run the tests of whole processes; of these, make test-heavy-quick leaves out the thorough ones"
	@echo "make reliability  prove the service's promises, in full counts"
	@echo "make check        formatting, lint, types"
	@echo "make docs         build the documentation site into site/"
	@echo "make install      everything for development, torch included"
	@echo "make bench        all benchmarks"
	@echo "make bench-w1     of them: the simulator beside a bare loop, ending with ratio_to_bare"
	@echo "make bench-simulator  of them: all about the simulator, other simulators included"
	@echo "make bench-service  of them: the HTTP service under load"
	@echo "make bench-capacity  what a server takes, by model, cores and measurers"
	@echo "make bench-page   what the live page costs a server"
	@echo "make screenshots  the pictures of the live page in the documentation"
	@echo "make bench-drift  drift detectors: false alarms, delays, costs"
	@echo "make constraints  refresh constraints.txt"

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11, 3.12 or 3.13 is needed; name it with PYTHON=..." >&2; exit 2; }
	@echo "building $(VENV) with $(PYTHON)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(INPUTS) | $(BIN)/python
	@$(PIP) --editable '.[sim,client,server]'
	@touch $@

$(VENV)/.dev: $(INPUTS) | $(BIN)/python
	@$(PIP) --editable '.[$(EXTRAS)]'
	@touch $@ $(VENV)/.demo

$(VENV)/.docs: $(INPUTS) | $(BIN)/python
	@$(PIP) --editable '.[docs]'
	@touch $@

$(VENV)/.ray: $(VENV)/.dev
	@$(PIP) --editable '.[ray]'
	@touch $@

install: $(VENV)/.dev

docs: $(VENV)/.docs  # without --quiet, under which --strict would not see a warning
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

demo: $(VENV)/.demo
	@$(BIN)/artesian demo

PYTEST = $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal

test: WORKERS = 3  # ordinary tests wait now and then: three processes keep two cores busy
test: $(VENV)/.dev
	@$(PYTEST) -m 'not heavy and not ray' $(ARGS)

test-heavy: WORKERS = 3  # heavy tests wait for other processes a third of their time
test-heavy: $(VENV)/.dev
	@$(PYTEST) -m 'heavy and not ray' $(ARGS)

# Of those, all but the thorough ones: long, or showing for other values what another one shows.
test-heavy-quick: WORKERS = 3
test-heavy-quick: $(VENV)/.dev
	@$(PYTEST) -m 'heavy and not ray and not thorough' $(ARGS)

# Ray starts processes of its own, as many as there are cores: its tests run one after the other.
test-ray: $(VENV)/.ray
	@$(BIN)/python -m pytest -m ray --ignore=tests/server $(ARGS)
	@$(BIN)/python -m pytest -m ray tests/server $(ARGS)

test-all: $(VENV)/.dev
	@$(MAKE) --no-print-directory test
	@$(MAKE) --no-print-directory test-heavy ARGS=--ignore=tests/promises
	@$(MAKE) --no-print-directory reliability
	@$(MAKE) --no-print-directory test-ray
	@$(MAKE) --no-print-directory test-newest

# The newest Python, without torch (not every place has a build of it for this Python), in an environment of its own.
NEWEST := 3.13
test-newest:
	@python=$$(for p in python$(NEWEST) $$(ls -d "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/$(NEWEST).*/bin/python 2>/dev/null); do \
		$$p -c 'import sys' 2>/dev/null && echo $$p && break; done); \
	if [ -z "$$python" ]; then echo "Python $(NEWEST) is not here: its tests are not run"; else \
		$(MAKE) --no-print-directory test PYTHON="$$python" VENV=$(VENV)-$(NEWEST) EXTRAS=sim,client,server,report,drift,dev; fi

reliability: $(VENV)/.dev
	@ARTESIAN_PROMISES=full $(BIN)/python -m pytest tests/promises --numprocesses $(WORKERS) --dist load $(ARGS)

check: $(VENV)/.dev
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy

format: $(VENV)/.dev
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: $(VENV)/.dev
	@$(BIN)/python benchmarks/blend.py
	@$(BIN)/python benchmarks/clients.py
	@$(MAKE) --no-print-directory bench-simulator
	@$(MAKE) --no-print-directory bench-service
	@$(MAKE) --no-print-directory bench-capacity

bench-w1: $(VENV)/.dev
	@$(BIN)/python benchmarks/w1.py $(ARGS)

bench-simulator: $(VENV)/.dev
	@$(BIN)/python benchmarks/simulator.py $(ARGS)

bench-service: $(VENV)/.dev
	@$(BIN)/python benchmarks/service.py --profile

bench-drift: $(VENV)/.dev
	@$(BIN)/python benchmarks/drift_detectors.py $(ARGS)

bench-capacity: $(VENV)/.dev
	@$(BIN)/python benchmarks/capacity.py $(ARGS)

bench-page: $(VENV)/.dev
	@$(BIN)/python benchmarks/page.py $(ARGS)

screenshots: $(VENV)/.dev
	@$(BIN)/python tools/screenshots.py

constraints: | $(BIN)/python
	@$(BIN)/python tools/constraints.py

clean:
	rm -rf $(VENV) dist build site
