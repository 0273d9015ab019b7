# Two commands: `make demo` runs the main job on real data, `make test` passes everything. Both do their own set-up and
# need Debian, Python 3.11 and make; `make test` also installs MariaDB, Chromium, Java, Prometheus and nftables from Debian (see tools/debian.sh).

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
STAMP_DEV := $(VENV)/.installed-dev
COMPILED := $(VENV)/.compiled
STAMP_DEBIAN := $(VENV)/.debian

# Hundreds of processes are started: each would compile what it imports again.
unexport PYTHONDONTWRITEBYTECODE
PYTEST := $(BIN)/pytest --durations=10 --durations-min=5
UNIT := $(sort $(wildcard tests/test_*.py)) tests/unit tests/catalog tests/golden tests/scenarios tests/properties tests/specs
INTEGRATION := tests/integration tests/packaging

.PHONY: help demo test fast check lint types imports unit integration sim e2e soak bench coverage versions dist docs docs-serve clean

help: ## this list
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | awk -F'\t' '{printf "make %-12s %s\n", $$1, $$2}'

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "TiStream needs Python 3.11 or newer; PYTHON=... names one"; exit 1; }
	@echo "  ▸ environment: a virtual environment in $(VENV), usually 5 s"
	@$(PYTHON) -m venv $(VENV) || { echo "python3 -m venv failed: on Debian install python3-venv"; exit 1; }

# uv installs several times faster than pip; where it cannot be had, pip does. CONSTRAINTS=tools/versions.txt installs the
# versions with which all tests passed last; without it the newest that pyproject.toml allows are installed.
define install
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv 2>/dev/null \
		&& UV_SYSTEM_CERTS=1 $(BIN)/uv pip install --quiet --python $(BIN)/python $(addprefix -c ,$(CONSTRAINTS)) -e '$(1)' \
		|| $(BIN)/python -m pip install --quiet --disable-pip-version-check $(addprefix -c ,$(CONSTRAINTS)) -e '$(1)'
endef

$(STAMP): pyproject.toml | $(BIN)/python
	@echo "  ▸ install: TiStream and what it needs into $(VENV), usually 5 to 40 s"
	$(call install,.[services])
	@touch $@

$(STAMP_DEV): pyproject.toml | $(BIN)/python
	@echo "  ▸ install: TiStream and its development tools into $(VENV), usually 10 to 60 s"
	$(call install,.[dev])
	@touch $@ $(STAMP)

# Kept in the user's cache by content: where this version was compiled before it takes seconds.
$(COMPILED): | $(STAMP)
	@echo "  ▸ compile: what handles rows into machine code, once; usually 30 s, or 5 s where this version was compiled before"
	@$(BIN)/tistream compile
	@touch $@

$(STAMP_DEBIAN): tools/debian.sh | $(BIN)/python
	@bash tools/debian.sh
	@touch $@

demo: $(STAMP) $(COMPILED) ## run TiStream on a recorded change stream of a real TiDB
	@$(BIN)/tistream demo $(DEMO_FLAGS)

lint: $(STAMP_DEV) ## ruff: style and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP_DEV) ## mypy, strict
	$(BIN)/mypy

imports: $(STAMP_DEV) ## the import contract
	$(BIN)/lint-imports

unit: $(STAMP_DEV) $(COMPILED) ## unit, property, scenario and golden tests, specifications
	$(PYTEST) -n 2 -m "not mariadb" $(UNIT)

integration: $(STAMP_DEV) $(COMPILED) $(STAMP_DEBIAN) ## tests on MariaDB, S3, Spark and processes
	$(PYTEST) -n 3 $(INTEGRATION)
	$(PYTEST) -n 3 -m mariadb tests/catalog

sim: $(STAMP_DEV) $(COMPILED) ## the deterministic simulator and its mutants
	SIM_SEEDS=$${SIM_SEEDS:-50} $(PYTEST) -n 2 tests/sim

e2e: $(STAMP_DEV) $(COMPILED) $(STAMP_DEBIAN) ## whole services, in processes and in a browser
	$(PYTEST) -n 3 tests/e2e

soak: $(STAMP_DEV) $(COMPILED) $(STAMP_DEBIAN) ## all tests with their coverage, 10^7 states, 1,000 seeds, 20 minutes of chaos; hours
	SIM_SEEDS=$${SIM_SEEDS:-50} $(MAKE) --no-print-directory coverage
	$(BIN)/python -m tests.specs --states 10000000
	$(BIN)/tistream sim --seeds 0:1000 --processes 2
	$(BIN)/tistream chaos --minutes 20

fast: lint imports ## style, contracts and the quick unit tests: under a minute
	$(BIN)/pytest -n 2 tests/test_tidy.py tests/unit/kernel tests/unit/model tests/unit/runtime tests/unit/objectstore \
		tests/unit/dispatcher tests/unit/sorter/test_sort_buffer.py tests/unit/feed tests/scenarios

check: lint types imports unit ## lint, types, imports and unit: no servers, no browser

# Set-up and checks run side by side, then all suites in one run: two processes more than a small machine has cores, as
# many tests wait for other processes. tests/budgets.toml has the order, what each suite may take, and of which tests
# each commit runs a twentieth.
test: ## everything that each commit must pass
	@$(MAKE) --no-print-directory -j 2 -O $(STAMP_DEV) $(STAMP_DEBIAN)
	@$(MAKE) --no-print-directory -j 2 -O lint imports types $(COMPILED)
	$(PYTEST) -n 4 --rotation commit $(UNIT) $(INTEGRATION) tests/sim tests/e2e

bench: $(STAMP_DEV) $(COMPILED) ## benchmarks, as ratios
	$(BIN)/python -m benchmarks

coverage: $(STAMP_DEV) $(COMPILED) $(STAMP_DEBIAN) ## all tests; fails below the floor of lines and branches that they execute
	@$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -n 3 --rotation $${ROTATION:-all} --junit-xml=artefacts/tests.xml \
		$(UNIT) $(INTEGRATION) tests/sim tests/e2e
	@$(BIN)/coverage combine --quiet
	@$(BIN)/coverage report --skip-covered --sort=cover
	@echo "artefacts/tests.xml lists the tests"

versions: $(STAMP_DEV) ## note the installed versions, for CI; with the oldest Python, as some libraries need a newer one
	$(BIN)/python -m pip freeze --disable-pip-version-check --exclude-editable --exclude uv > tools/versions.txt

dist: $(STAMP_DEV) ## the sdist, and the two wheels that are built from it, in dist
	@rm -rf dist build/sdist && mkdir -p build/sdist
	@$(BIN)/hatchling build -t sdist
	@tar -xzf dist/*.tar.gz -C build/sdist --strip-components=1
	@$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation -w dist \
		build/sdist build/sdist/infra/server
	@ls dist

docs: $(STAMP_DEV) ## the documentation as a site, in build/site
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "build/site/index.html"

docs-serve: $(STAMP_DEV) ## the same, served while it is written
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve --dev-addr 127.0.0.1:8700

clean: ## remove the venv and everything that was built
	rm -rf $(VENV) build dist artefacts .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
