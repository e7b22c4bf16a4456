# The one way people and CI run things. `make help` lists the targets.
SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
CONSTRAINTS := constraints.txt
PIP := PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/python -m pip --quiet --no-input
SOURCES := client server agents_demo tests tools
PYTEST_ARGS ?=

.PHONY: help setup demo test check lint types imports api sync-client stubs protos constraints bench robustness clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-14s %s\n", $$1, $$2}'

setup: $(STAMP) ## make .venv with everything in it (once)

$(STAMP): pyproject.toml $(CONSTRAINTS)
	@python=$$(sh tools/find_python.sh) && { [ -x $(BIN)/python ] || "$$python" -m venv $(VENV); }
	@echo "installing into $(VENV) ..."
	@# The build backend first, pinned like everything else: an isolated build would take its newest version.
	@$(PIP) install -c $(CONSTRAINTS) hatchling editables
	@$(PIP) install -c $(CONSTRAINTS) --no-build-isolation -e '.[server,dev]'
	@touch $@

demo: $(STAMP) ## a team of agents doing a real job over a board
	@$(BIN)/python -m agents_demo

test: $(STAMP) ## all tests but the long ones, in random order (PYTEST_ARGS=... adds arguments)
	@$(BIN)/python -m pytest $(PYTEST_ARGS)

check: lint types imports api sync-client ## lint, format, types, import contract, protos, generated code

lint: $(STAMP)
	@$(BIN)/ruff check --quiet $(wildcard $(SOURCES))
	@$(BIN)/ruff format --check --quiet $(wildcard $(SOURCES)) || { echo "run: $(BIN)/ruff format $(wildcard $(SOURCES))"; exit 1; }

types: $(STAMP)
	@$(BIN)/mypy $(wildcard $(SOURCES))

imports: $(STAMP)
	@$(BIN)/lint-imports --no-logo --cache-dir .cache/import_linter

api: $(STAMP)
	@$(BIN)/python tools/gen_protos.py --check

sync-client: $(STAMP)
	@if [ -f tools/async_to_sync.py ]; then $(BIN)/python tools/async_to_sync.py --check; fi

protos: $(STAMP) ## regenerate client/slateboard/v1 and record the API (BREAKING=1 accepts a breaking change)
	@$(BIN)/python tools/gen_protos.py $(if $(BREAKING),--accept-breaking)

stubs: $(STAMP) ## generate Go, TypeScript, Java and Rust from the protos
	@if [ -f tools/stubs.sh ]; then sh tools/stubs.sh; else echo "tools/stubs.sh is not there" >&2; exit 1; fi

bench: $(STAMP) ## measure; prints a table of ratios and writes JSON
	@$(BIN)/python -m tests.bench

robustness: $(STAMP) ## minutes of traffic and faults, then the recorded history is checked
	@$(BIN)/python -m pytest -m robustness $(PYTEST_ARGS)

constraints: ## pin everything again, to the newest versions that pyproject.toml allows
	@sh tools/pin_constraints.sh $(CONSTRAINTS)

clean: ## remove .venv, caches and build results
	@rm -rf $(VENV) .cache build dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
