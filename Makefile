# Two commands for newcomers: `make demo` and `make test`. Each sets up what it needs in .venv;
# the frameworks, which hold back versions of other packages, live in .venv-frameworks.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
STAMP := $(VENV)/.installed
INSTALL := -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable
FRAMEWORKS := .venv-frameworks
FRAMEWORKS_RUN := $(FRAMEWORKS)/bin/python
FRAMEWORKS_STAMP := $(FRAMEWORKS)/.installed

.PHONY: demo test test-frameworks bench bench-fl lint clean setup

setup: $(STAMP)

$(STAMP): pyproject.toml setup.py constraints.txt $(wildcard cvrcore_ext/*.pyx cvrcore_ext/*.h)
	test -x $(RUN) || $(PYTHON) -m venv $(VENV)
	$(RUN) $(INSTALL) ".[fl,report,dev]"
	touch $@

# Kernels built for .venv serve here too. An extra that cannot be installed is named, and its
# tests skip; the next call tries again.
$(FRAMEWORKS_STAMP): export CVRCORE_EXT := $(if $(wildcard cvrcore_ext/base/*.so),skip,$(or $(CVRCORE_EXT),auto))
$(FRAMEWORKS_STAMP): pyproject.toml setup.py constraints.txt
	test -x $(FRAMEWORKS_RUN) || $(PYTHON) -m venv $(FRAMEWORKS)
	if $(FRAMEWORKS_RUN) $(INSTALL) ".[fl,report,dev,flower,nvflare,ray,pfl]"; then touch $@; else \
		$(FRAMEWORKS_RUN) $(INSTALL) ".[fl,report,dev]" || exit 1; \
		for extra in flower nvflare ray pfl; do $(FRAMEWORKS_RUN) $(INSTALL) ".[$$extra]" || \
			echo "WARNING: extra $$extra could not be installed: its tests will be skipped" >&2; \
		done; \
	fi

demo: $(STAMP)
	$(VENV)/bin/cvrcore compare --out runs/demo

test: $(STAMP)
	$(RUN) -m pytest

test-frameworks: $(FRAMEWORKS_STAMP)
	$(FRAMEWORKS_RUN) -m pytest tests/frameworks

bench: $(STAMP)
	$(RUN) -m bench

bench-fl: $(STAMP)
	$(RUN) -m bench.bench_fl

lint: $(STAMP)
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

clean:
	rm -rf $(VENV) $(FRAMEWORKS) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
	find cvrcore cvrcore_ext fl bench tests -name __pycache__ -type d -prune -exec rm -rf {} +
	find cvrcore_ext -name '*.so' -delete
