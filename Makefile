# Each target first makes .venv, and installs what it needs where that is missing or older than what
# it is made from. PYTHON=python3.12 make test: with another interpreter (3.10 or later).

PYTHON ?= python3
BIN := .venv/bin
TRAIN_READY := .venv/ready-train
TEST_READY := .venv/ready-test
BENCH_READY := .venv/ready-bench
DOCS_READY := .venv-docs/ready

# The frameworks have an environment of their own: their versions do not fit those of the tests.
INTEGRATIONS_READY := .venv-integrations/ready

# How many processes run tests; each starts ranks and loader processes of its own.
JOBS ?= 4
# A file of tests stays in one process, which makes once what they share. In the order of the folders:
# by number of tests, the slow files with few of them would come last, one after another.
PYTEST = $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder
FAST := tests/test_architecture.py tests/test_exports.py tests/plan tests/data/test_batches.py \
	$(addprefix tests/distribute/test_, $(addsuffix .py, \
	tables dataset sources refused_sources unusual_sources user_loaders))

# Each process of tests imports all of them: what one has compiled is there for the next run, also
# where the environment says that nothing is to be written.
export PYTHONDONTWRITEBYTECODE =

.DELETE_ON_ERROR:
.PHONY: train test test-fast test-slow test-long test-integrations lint pytest bench bench-quick docs linkcheck clean help

train: $(TRAIN_READY)  ## the main job: two ranks train on this machine
	$(BIN)/torchrun --standalone --nproc-per-node 2 examples/train_stdlib.py

# Lint runs beside the tests: mypy keeps one core busy for a while, and tests of ranks wait a lot.
test: $(TEST_READY)  ## all but the slow tests; ROOM=plan: the tests of one room only, slow ones too
	@$(MAKE) --no-print-directory --jobs=2 $(if $(ROOM),,lint) pytest

test-fast: $(TEST_READY)  ## what one runs while writing: a minute
	$(PYTEST) $(FAST)

test-slow: $(TEST_READY)  ## the tests that take more than a second, which CI runs too
	$(PYTEST) -m slow

test-long: export TDI_TEST_LONG = 1
test-long: test test-slow  ## both with larger numbers

test-integrations: export TDI_TEST_INTEGRATIONS = 1
test-integrations: $(INTEGRATIONS_READY)  ## against Lightning, transformers, Ray, ...: installs them first, 2 GB
	.venv-integrations/bin/python -m pytest -n $(JOBS) --dist loadfile tests/integrations tests/coordinator

lint: $(TEST_READY)  ## style and types
	$(BIN)/ruff check
	$(BIN)/mypy

pytest: $(TEST_READY)
	$(PYTEST) $(if $(ROOM),tests/$(ROOM),-m "not slow")

bench: $(BENCH_READY)  ## all figures, docs/benchmarks.md and its chart; leave the machine alone meanwhile
	$(BIN)/python benchmarks/run.py
	$(BIN)/python benchmarks/run.py --quick --rounds 5 --keep
	$(BIN)/python benchmarks/report.py

bench-quick: $(BENCH_READY)  ## the same from less data, and what got slower; prints only
	$(BIN)/python benchmarks/run.py --quick

docs: $(DOCS_READY)  ## the documentation as a site, build/site/index.html; a warning is an error
	.venv-docs/bin/sphinx-build -W --keep-going -q -c docs . build/site

linkcheck: $(DOCS_READY)  ## links to other sites; needs a network
	.venv-docs/bin/sphinx-build -W --keep-going -q -b linkcheck -c docs . build/linkcheck

clean:  ## caches and build output; environments stay
	rm -rf build dist *.egg-info .coverage .coverage.* htmlcov
	rm -rf .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -path './.venv*' -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# Environment, constraints, what. A comma inside of a call would begin the next argument.
WITH_BENCH := .[test,bench]
define install
$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or later is needed, this is " + sys.version)'
test -x $(1)/bin/python || $(PYTHON) -m venv $(1)
$(1)/bin/python -m pip install --no-input -c $(2) -e '$(3)'
endef

$(TRAIN_READY): pyproject.toml constraints.txt
	$(call install,.venv,constraints.txt,.)
	touch $@

# What tests need includes what training needs: `make train` after `make test` installs nothing.
$(TEST_READY): pyproject.toml constraints.txt
	$(call install,.venv,constraints.txt,.[test])
	touch $(TRAIN_READY) $@

$(BENCH_READY): $(TEST_READY)
	$(call install,.venv,constraints.txt,$(WITH_BENCH))
	touch $@

# The site needs neither torch nor this package: it is made of the pages alone.
$(DOCS_READY): constraints-docs.txt
	$(PYTHON) -m venv .venv-docs
	.venv-docs/bin/python -m pip install --no-input -r constraints-docs.txt
	touch $@

$(INTEGRATIONS_READY): pyproject.toml constraints-integrations.txt
	$(call install,.venv-integrations,constraints-integrations.txt,.[integrations])
	touch $@
