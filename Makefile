# Each target first makes .venv, and installs what it needs where that is missing or older than what
# it is made from. PYTHON=python3.12 make test: with another interpreter (3.10 or later).

PYTHON ?= python3
BIN := .venv/bin
TRAIN_READY := .venv/ready-train
TEST_READY := .venv/ready-test
BENCH_READY := .venv/ready-bench

# How many processes run tests. Each starts ranks and loader processes of its own.
JOBS ?= 2
# A file stays in one process, which makes what its tests share once.
PYTEST = $(BIN)/python -m pytest -n $(JOBS) --dist loadfile
# What one runs while writing: the integers, the batches, the sources, the rules of the house.
FAST := tests/test_architecture.py tests/test_exports.py tests/plan

.DELETE_ON_ERROR:
.PHONY: train test test-fast test-long lint bench bench-quick clean help all-tests

train: $(TRAIN_READY)  ## the main job: two ranks train on this machine
	$(BIN)/torchrun --standalone --nproc-per-node 2 examples/train_stdlib.py

ifdef ROOM
test: $(TEST_READY)
	$(PYTEST) tests/$(ROOM)
else
test: $(TEST_READY)  ## all that must hold before a change goes in; ROOM=plan: only the tests of that room
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target lint all-tests
endif

test-fast: $(TEST_READY)  ## what one runs while writing, in a minute
	$(PYTEST) $(FAST)

test-long: $(TEST_READY)  ## the same tests with larger numbers
	@TDI_TEST_LONG=1 $(MAKE) --no-print-directory --jobs=2 --output-sync=target lint all-tests

lint: $(TEST_READY)  ## style and types
	$(BIN)/ruff check
	$(BIN)/mypy

# The + shows what is printed as it comes, while the output of lint waits for its end.
all-tests: $(TEST_READY)
	+$(PYTEST)

bench: $(BENCH_READY)  ## all figures, docs/benchmarks.md and its chart; leave the machine alone meanwhile
	$(BIN)/python benchmarks/run.py
	$(BIN)/python benchmarks/report.py

bench-quick: $(BENCH_READY)  ## the same figures from less data, in under two minutes; prints only
	$(BIN)/python benchmarks/run.py --quick

clean:  ## caches and build output; .venv stays
	rm -rf build dist *.egg-info .coverage .coverage.* htmlcov
	rm -rf .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -path ./.venv -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1:/p' $(MAKEFILE_LIST) | column -t -s : -l 2

define install
$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or later is needed, this is " + sys.version)'
test -x $(BIN)/python || $(PYTHON) -m venv .venv
$(BIN)/python -m pip install --no-input -c constraints.txt -e '$(1)'
endef

$(TRAIN_READY): pyproject.toml constraints.txt
	$(call install,.)
	touch $@

# What tests need includes what training needs: `make train` after `make test` installs nothing.
$(TEST_READY): pyproject.toml constraints.txt
	$(call install,.[test])
	touch $(TRAIN_READY) $@

$(BENCH_READY): $(TEST_READY)
	$(call install,.[test,bench])
	touch $@
