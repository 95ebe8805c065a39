# Everything happens in this folder: nothing is installed into the system, no service is started.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help setup demo test lint types smoke unit format bench bench-limits bench-rates bench-redis bench-servers dashboards pictures clean

help: ## Say what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## Create .venv with everything that development needs

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "loadgate needs Python 3.11 or newer; try: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -m venv --upgrade-deps $(VENV) || \
	  { echo "could not make a virtual environment; on Debian: apt install python3-venv"; exit 1; }
	@$(BIN)/python -m pip install --quiet --group dev --constraint constraints.txt -e '.[all]'
	@touch $@

demo: setup ## Show loadgate protecting a real service under real load (one minute)
	@$(BIN)/loadgate demo

test: lint types smoke unit ## Run everything that CI runs

lint: setup ## Check style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup ## Check types, strictly, with both checkers
	$(BIN)/mypy
	$(BIN)/pyright

smoke: setup ## Judge the adaptive limit on one seed of every scenario (a minute or two)
	$(BIN)/python -m bench.limits --smoke

unit: setup ## Run every test, on asyncio, uvloop and trio
	$(BIN)/python -m pytest

format: setup ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup ## Measure the cost of one decision
	$(BIN)/python -m bench.decision

bench-limits: setup ## Judge every limit on ten seeds, write docs/benchmark.md (most of an hour)
	$(BIN)/python -m bench.limits --seeds 10 --tuned --write

bench-rates: setup ## Measure the rates beside their peers (ten minutes)
	$(BIN)/python -m bench.rates

bench-redis: setup ## Measure shared rates on a real server, alone, from 16 processes and in trouble (four minutes)
	$(BIN)/python -m bench.redis
	$(BIN)/python -m bench.redis_processes
	$(BIN)/python -m bench.redis_incidents

bench-servers: setup ## Offer real servers up to 50 times their capacity, write the page about it (12 minutes)
	$(BIN)/python -m bench.server_overload --write

dashboards: setup ## Write the dashboards and rules again from their code
	$(BIN)/python -W ignore -m loadgate.dashboards.source

pictures: setup ## Draw the dashboards for the docs with Grafana's own components (npm, 500 MB)
	$(BIN)/python -W ignore -m tests.dashboards.pictures

clean: ## Remove everything that make has created
	rm -rf $(VENV) out .mypy_cache .ruff_cache .pytest_cache .hypothesis
