# Every command of the project. Each sets up what it needs in .venv, and is quick when that is there.

PYTHON  ?= python3
PROFILE ?= embedded
SMOKE   ?=
DRY_RUN ?=
ARGS    ?=

PY    := .venv/bin/python
STAMP := .venv/.installed

# VAR=1 adds an override; empty, 0 and false do not
flag = $(if $(filter-out 0 false,$($(1))),$(2))

.DEFAULT_GOAL := help
.PHONY: help setup reproduce-paper studies test test-slow test-extras lint docs bench train-tiny clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'
	@echo
	@echo "  PYTHON=python3.12   the interpreter that .venv is made with (3.11 or later)"
	@echo "  ARGS='...'          passed on to the command"

setup: $(STAMP) ## make .venv and install the pinned packages

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or later is needed, $(PYTHON) is $$($(PYTHON) -V 2>&1): name another with PYTHON=..." >&2; exit 1; }
	@test -x $(PY) || $(PYTHON) -m venv .venv
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

reproduce-paper: $(STAMP) ## the paper's tables and plots (PROFILE=embedded|paper, SMOKE=1: minutes, DRY_RUN=1: the plan alone)
	$(PY) scripts/reproduce_paper.py profile=$(PROFILE) $(call flag,SMOKE,smoke=true) $(call flag,DRY_RUN,dry_run=true) $(ARGS)

studies: $(STAMP) ## the paper's premises, measured (PROFILE=embedded|paper), into the profile's report
	$(PY) scripts/study.py -m study=drift,volatility,overhead,cost,calibrate profile=$(PROFILE) $(ARGS)

test: $(STAMP) ## the test suite, a few minutes on two cores
	OMP_NUM_THREADS=1 $(PY) -m pytest -n auto --maxprocesses=4 --dist=worksteal $(ARGS)

test-slow: $(STAMP) ## the tests marked slow
	OMP_NUM_THREADS=1 $(PY) -m pytest -m slow $(ARGS)

test-extras: $(STAMP) ## launchers, trackers and the site, with every extra installed (ray, mlflow, ...)
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,all]'
	OMP_NUM_THREADS=1 $(PY) -m pytest -m "slow or not slow" tests/scripts/test_launchers.py tests/test_trackers.py \
	  tests/scripts/test_tracked_run.py tests/test_docs.py $(ARGS)

lint: $(STAMP) ## ruff and mypy
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

docs: $(STAMP) ## the documentation as a site, in site/
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --quiet $(ARGS)

bench: $(STAMP) ## time one step of every method on this machine
	$(PY) scripts/bench.py $(ARGS)

train-tiny: $(STAMP) ## train a small checkpoint again (hours); STEPS=200: its first losses alone, beside the record's
	$(PY) scripts/train_tiny.py $(if $(STEPS),check=$(STEPS)) $(ARGS)

clean: ## remove .venv, caches and unfinished training; results stay
	rm -rf .venv .train site .pytest_cache .mypy_cache .ruff_cache .hypothesis build *.egg-info outputs multirun
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
