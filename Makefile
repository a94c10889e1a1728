# Every target installs what it needs first. On a fresh Debian with Python 3.11:
#   make tune    one study: python -m tuner framework=caffe dataset=mnist   (ARGS="..." for another)
#   make test    lint, types and the whole test suite
#   make test-all   the contract suite for every framework
PYTHON ?= $(firstword $(shell for each in python3.11 python3.12 python3.13 python3; do command -v $$each && $$each -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && break; done | tail -n 1))
ARGS ?= framework=caffe dataset=mnist
BIN := .venv/bin
# Python and pytest keep what they compile, which nearly halves the time that the fast tests take to start.
export PYTHONDONTWRITEBYTECODE :=

# Frameworks whose contract suite `make test` runs; `make test-all` runs it for every one.
FRAMEWORKS ?= caffe,torch

# What to shorten when the suite grows.
SLOWEST := --durations 25 --durations-min 5

# tests/conftest.py groups the tests and orders the groups.
GROUPED := --dist loadgroup --no-loadscope-reorder
# Tests of frameworks have a CPU each; those without one wait for much of their time, so more run side by side.
SIDE_BY_SIDE := -n auto --maxprocesses 4 $(GROUPED)
CLOSE_TOGETHER := -n $$((2 * $$(nproc))) --maxprocesses 6 $(GROUPED)

.PHONY: install tune test test-all coverage check check-lowest check-newest architecture docs clean packages browser lua requirements

install: .venv/installed

.venv/installed: .venv/tuner requirements-dev.txt
	$(BIN)/pip install --quiet --no-compile -r requirements-dev.txt
	touch $@

# What a study needs. uv fetches the Pythons of runtimes that this machine lacks. Nothing is compiled before it is imported:
# most of it never is, and compiling all of it takes nearly half of the installation.
.venv/tuner: requirements-hashed.txt requirements-dev.txt pyproject.toml
	./scripts/make-venv $(PYTHON)
	$(BIN)/pip install --quiet --no-compile --require-hashes -r requirements-hashed.txt
	$(BIN)/pip install --quiet --no-compile $$(grep '^uv==' requirements-dev.txt)
	$(BIN)/pip install --quiet --no-compile --no-deps --editable .
	touch $@

# What make and the image install, and all that it needs, each held to its hashes; for after a change of a version.
PINNED := requirements.txt requirements-postgresql.txt requirements-ray.txt
requirements: install
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header \
		--no-emit-index-url --no-emit-find-links $(PINNED) --output-file requirements-hashed.txt

# What the runtimes of Debian's frameworks need of this machine; and for root, who may join two networks of it, the tests of
# groups on several nodes.
packages:
	./scripts/need-packages mmdebstrap:mmdebstrap bwrap:bubblewrap
	-PATH="$$PATH:/usr/sbin:/sbin" ./scripts/need-packages ip:iproute2 tc:iproute2

# The tests open the report and MLflow's pages in a real browser.
browser:
	-./scripts/need-packages chromium:chromium

# They also run what Lua workers share; without LuaJIT those tests are skipped.
lua:
	-./scripts/need-packages luajit:luajit

tune: .venv/tuner packages
	$(BIN)/python -m tuner $(ARGS)

check: install packages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q $(SIDE_BY_SIDE) -m "not (runtime or slow)"

# The fast tests with the lowest and the newest versions that pyproject.toml allows.
check-lowest: RESOLUTION := lowest-direct
check-newest: RESOLUTION := highest
check-lowest check-newest: install packages
	$(BIN)/uv venv --quiet --clear --seed --python $(BIN)/python .venv-$(RESOLUTION)
	$(BIN)/uv pip install --quiet --python .venv-$(RESOLUTION) --resolution $(RESOLUTION) -e '.[all]' -r requirements-dev.txt
	.venv-$(RESOLUTION)/bin/python -m pytest -q $(SIDE_BY_SIDE) -m "not (runtime or slow)"

test: install packages browser lua
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest $(CLOSE_TOGETHER) -m "not runtime" $(SLOWEST)
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) -m runtime --frameworks $(FRAMEWORKS) $(SLOWEST)

# Lines and branches that the tests without a framework's runtime reach; the floor is in pyproject.toml.
# Tracing slows them down, so each has more time.
coverage: install packages browser lua
	$(BIN)/python -m pytest -q $(SIDE_BY_SIDE) -m "not runtime" --timeout 30 --cov

test-all: install packages
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) tests/contract

# The floors of the code, drawn from its imports; docs/architecture.md shows them.
architecture: install
	@$(BIN)/python scripts/architecture

# The pages of docs/ as a site, in site/; a broken link is an error.
docs: install
	$(BIN)/sphinx-build -q -W --keep-going docs site

clean:
	rm -rf .venv .venv-* dist site .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
