# Two commands: `make demo` runs the main job on real data, `make test` passes everything. Both do their own set-up and
# need Debian, Python 3.11 and make; `make test` also installs MariaDB, Chromium, Java and promtool from Debian (see tools/debian.sh).

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
STAMP_DEV := $(VENV)/.installed-dev
COMPILED := $(VENV)/.compiled
STAMP_DEBIAN := $(VENV)/.debian

.PHONY: demo test check lint types imports unit integration sim e2e bench docs docs-serve clean help

help:
	@echo "make demo    run TiStream on a recorded change stream of a real TiDB"
	@echo "make test    everything: lint, types, import contract, all tests"
	@echo "make check   the fast part of it, without servers and browsers"
	@echo "make bench   benchmarks, as ratios"
	@echo "make docs    the documentation as a site, in build/site"

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "TiStream needs Python 3.11 or newer; PYTHON=... names one"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "python3 -m venv failed: on Debian install python3-venv"; exit 1; }

$(STAMP): pyproject.toml | $(BIN)/python
	@echo "Installing TiStream into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

$(STAMP_DEV): pyproject.toml | $(BIN)/python
	@echo "Installing TiStream and its development tools into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@ $(STAMP)

$(COMPILED): | $(STAMP)
	@echo "Compiling what handles rows, once ..."
	@$(BIN)/tistream compile
	@touch $@

$(STAMP_DEBIAN): tools/debian.sh | $(BIN)/python
	@bash tools/debian.sh
	@touch $@

demo: $(STAMP) $(COMPILED)
	@$(BIN)/tistream demo $(DEMO_FLAGS)

lint: $(STAMP_DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP_DEV)
	$(BIN)/mypy

imports: $(STAMP_DEV)
	$(BIN)/lint-imports

unit: $(STAMP_DEV) $(COMPILED)
	$(BIN)/pytest -n 2 tests/test_tidy.py tests/test_docs.py tests/unit tests/golden tests/scenarios tests/properties

integration: $(STAMP_DEV) $(COMPILED) $(STAMP_DEBIAN)
	$(BIN)/pytest -n 3 tests/integration tests/packaging

sim: $(STAMP_DEV) $(COMPILED)
	SIM_SEEDS=$${SIM_SEEDS:-500} $(BIN)/pytest -n 2 tests/sim

e2e: $(STAMP_DEV) $(COMPILED) $(STAMP_DEBIAN)
	$(BIN)/pytest -n 3 --dist loadfile tests/e2e

check: lint types imports unit

test: check integration sim e2e

bench: $(STAMP_DEV) $(COMPILED)
	$(BIN)/python -m benchmarks

docs: $(STAMP_DEV)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "build/site/index.html"

docs-serve: $(STAMP_DEV)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve --dev-addr 127.0.0.1:8700

clean:
	rm -rf $(VENV) build dist artefacts .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
