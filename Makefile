# Two commands for newcomers: `make demo` and `make test`. Each sets up what it needs in .venv.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
STAMP := $(VENV)/.installed

.PHONY: demo test bench bench-fl lint clean setup

setup: $(STAMP)

$(STAMP): pyproject.toml setup.py constraints.txt $(wildcard cvrcore_ext/*.pyx cvrcore_ext/*.h)
	test -x $(RUN) || $(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[fl,report,dev]"
	touch $@

demo: $(STAMP)
	$(VENV)/bin/cvrcore compare --out runs/demo

test: $(STAMP)
	$(RUN) -m pytest

bench: $(STAMP)
	$(RUN) -m bench

bench-fl: $(STAMP)
	$(RUN) -m bench.bench_fl

lint: $(STAMP)
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
	find cvrcore cvrcore_ext fl bench tests -name __pycache__ -type d -prune -exec rm -rf {} +
	find cvrcore_ext -name '*.so' -delete
