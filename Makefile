# Every target makes .venv first if it is missing or older than what it is made from.
# PYTHON=python3.12 make test: with another interpreter (3.10 or later).

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready
BENCH_READY := .venv/bench-ready

.DELETE_ON_ERROR:
.PHONY: train test test-long lint bench bench-quick clean

train: $(READY)  ## the main job: two ranks train on this machine
	$(BIN)/torchrun --standalone --nproc-per-node 2 examples/train_stdlib.py

test: lint  ## all that must hold before a change goes in
	$(BIN)/python -m pytest

test-long: lint  ## the same tests with larger numbers
	TDI_TEST_LONG=1 $(BIN)/python -m pytest

lint: $(READY)
	$(BIN)/ruff check
	$(BIN)/mypy

bench: $(BENCH_READY)  ## all figures, docs/benchmarks.md and its chart; leave the machine alone meanwhile
	$(BIN)/python benchmarks/run.py
	$(BIN)/python benchmarks/report.py

bench-quick: $(BENCH_READY)  ## the same figures from less data, in under two minutes; prints only
	$(BIN)/python benchmarks/run.py --quick

clean:  ## caches and build output; .venv stays
	rm -rf build dist *.egg-info .coverage .coverage.* htmlcov
	rm -rf .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -path ./.venv -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or later is needed, this is " + sys.version)'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --no-input -c constraints.txt -e '.[test]'
	touch $@

$(BENCH_READY): $(READY)
	$(BIN)/python -m pip install --no-input -c constraints.txt -e '.[test,bench]'
	touch $@
