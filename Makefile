# Everything here sets itself up: only python3 (>= 3.11) with venv has to be on the machine.
#
#   make compare                          routers on a scenario: table, CSV, plots, TensorBoard
#   make compare SCENARIO=azure-conv-a100 POLICIES=lor,olp SEEDS=5
#   make test                             the whole test suite
#   make help                             the other targets

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV ?= .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check install -qq -c constraints.txt

SCENARIO ?= paper-overload
POLICIES ?= round_robin,lor,power_of_d,central_fifo,sjf,mc_sf,olp
SEEDS ?= 10
ARGS ?=
PYTEST_ARGS ?=
# Two test processes with a pool of threads each get in each other's way (torch: 20 times slower).
ONE_THREAD := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MPLBACKEND=Agg
# On Linux, PyPI's torch brings CUDA with it (several GB). For the CPU build, where it can be reached:
#   make test TORCH_INDEX=https://download.pytorch.org/whl/cpu
TORCH_INDEX ?=
ifneq ($(strip $(TORCH_INDEX)),)
export PIP_EXTRA_INDEX_URL := $(strip $(PIP_EXTRA_INDEX_URL) $(TORCH_INDEX))
endif

BASE := $(VENV)/.stamp-base
REPORT := $(VENV)/.stamp-report
DEV := $(VENV)/.stamp-dev

.PHONY: help
help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

# --- environment -----------------------------------------------------------------------------
# The build backend is pinned like everything else, so nothing is built in an isolated environment.

$(BASE): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "$(PYTHON) is $$($(PYTHON) -V 2>&1): 3.11 or later is needed (make PYTHON=python3.12 ...)" >&2; exit 1; }
	@test -x $(PY) || $(PYTHON) -m venv $(VENV) \
	  || { rm -rf $(VENV); echo "python3 has no venv here; on Debian: apt-get install python3-venv" >&2; exit 1; }
	@$(PIP) hatchling editables
	@touch $@

$(REPORT): $(BASE)
	@echo "installing llmroute-env[report] and what it needs into $(VENV) (about a minute) ..."
	@$(PIP) --no-build-isolation -e '.[report]'
	@touch $@

$(DEV): $(REPORT)
	@echo "installing torch, stable-baselines3 and the test tools into $(VENV) (about a minute) ..."
	@$(PIP) --no-build-isolation -e '.[report,rl,dev]'
	@touch $@

.PHONY: setup setup-dev
setup: $(REPORT) ## environment of `make compare` (no torch)
setup-dev: $(DEV) ## environment of `make test` (torch for the CPU included)

# --- main job --------------------------------------------------------------------------------

# Every run gets a numbered folder of its own under results/compare; OUT=... resumes one.
.PHONY: compare
compare: $(REPORT) ## compare POLICIES on SCENARIO over SEEDS paired seeds
	$(PY) scripts/compare.py --scenario $(SCENARIO) --policies $(POLICIES) --seeds $(SEEDS) \
	  $(if $(OUT),--out $(OUT)) $(ARGS)

# Objectives with their spaces quoted: make capacity ARGS='--slo "ttft_p99_s<=0.5" --seeds 8'
.PHONY: capacity
capacity: $(REPORT) ## the smallest fleet that meets an SLO, for POLICIES on SCENARIO
	$(PY) scripts/capacity.py --scenario $(SCENARIO) --policies $(POLICIES) \
	  $(if $(OUT),--out $(OUT)) $(ARGS)

.PHONY: benchmark
benchmark: $(REPORT) ## speed of the environment and of each policy's decision
	$(PY) scripts/benchmark.py $(ARGS)

.PHONY: docs
docs: $(REPORT) ## write docs/environment.md anew from the docstrings
	$(PY) scripts/build_docs.py

.PHONY: docs-results
docs-results: $(REPORT) ## reproduce the paper's tables and figures, write docs/results.md anew
	$(PY) scripts/reproduce_paper.py $(ARGS)

.PHONY: docs-fidelity
docs-fidelity: $(REPORT) ## replay Vidur's runs (../shared/fidelity), write docs/fidelity.md anew
	$(PY) scripts/fidelity.py --out results/fidelity --docs docs $(ARGS)

# --- checks ----------------------------------------------------------------------------------

.PHONY: test
test: $(DEV) ## the whole test suite
	$(ONE_THREAD) $(PY) -m pytest -n 2 --dist worksteal $(PYTEST_ARGS)

.PHONY: lint
lint: $(DEV) ## ruff, mypy, and whether the generated page is up to date
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(PY) scripts/build_docs.py --check

.PHONY: format
format: $(DEV) ## write the format and the safe fixes
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

# --- release ---------------------------------------------------------------------------------

.PHONY: wheel
wheel: $(DEV) ## wheel and sdist into dist/
	$(PY) -m build --no-isolation
	@ls -l dist

.PHONY: constraints
constraints: ## newest versions of everything into constraints.txt (torch stays as it is)
	@torch=$$(grep '^torch==' constraints.txt); venv=$$(mktemp -d); \
	  trap 'rm -rf "$$venv"' EXIT; \
	  $(PYTHON) -m venv "$$venv"; \
	  "$$venv/bin/python" -m pip install --quiet "$$torch" '.[rl,report,scale,dev]'; \
	  { grep '^#' constraints.txt; \
	    "$$venv/bin/python" -m pip freeze --exclude llmroute-env | sed -E 's/^(torch==[^+]*)\+.*/\1/'; \
	  } > constraints.new; \
	  mv constraints.new constraints.txt; git --no-pager diff --stat constraints.txt

.PHONY: clean
clean: ## remove the environment, builds and caches; results/ stays
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
