# Two commands for newcomers: `make demo` and `make test`. Each sets up what it needs in .venv, the
# demo less than the tests; the frameworks, which hold back versions of other packages, live in
# .venv-frameworks, the tools of a release in .venv-dist.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
STAMP := $(VENV)/.installed
DEMO_STAMP := $(VENV)/.installed-demo
PACKAGES := -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
INSTALL := $(PACKAGES) --editable
# Prints the packages of extras: those are added without building cvrcore once more.
EXTRA := -c "import sys, tomllib; found = tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']; print(*(line for name in sys.argv[1:] for line in found[name]), sep='\n')"
DIST := .venv-dist
DIST_RUN := $(DIST)/bin/python
DIST_STAMP := $(DIST)/.installed
FRAMEWORKS := .venv-frameworks
FRAMEWORKS_RUN := $(FRAMEWORKS)/bin/python
FRAMEWORKS_STAMP := $(FRAMEWORKS)/.installed
DOCS := .venv-docs
DOCS_RUN := $(DOCS)/bin/python
DOCS_STAMP := $(DOCS)/.installed
SITE_PACKAGES := -c "import sysconfig; print(sysconfig.get_path('purelib'))"

.PHONY: demo test test-core test-frameworks test-appfl test-matrix test-kernels coverage mutants fuzz soak capture audit bench bench-check bench-full bench-fl lint settings docs notebooks clean setup dist dist-check

setup: $(STAMP)

$(DEMO_STAMP): pyproject.toml setup.py constraints.txt $(wildcard cvrcore_ext/*.pyx cvrcore_ext/*.h)
	@echo "Installing cvrcore, PyTorch and matplotlib into $(VENV) (1 to 3 minutes: downloads, and kernels are compiled)..."
	test -x $(RUN) || $(PYTHON) -m venv $(VENV)
	$(RUN) $(INSTALL) ".[fl,report]"
	touch $@

$(STAMP): $(DEMO_STAMP)
	@echo "Installing what the tests need into $(VENV) (about a minute)..."
	$(RUN) $(EXTRA) dev | $(RUN) $(PACKAGES) --requirement /dev/stdin
	touch $@

# Kernels built for .venv serve here too. An extra that cannot be installed is named, and its
# tests skip; the next call tries again.
$(FRAMEWORKS_STAMP): export CVRCORE_EXT := $(if $(wildcard cvrcore_ext/base/*.so),skip,$(or $(CVRCORE_EXT),auto))
$(FRAMEWORKS_STAMP): pyproject.toml setup.py constraints.txt
	test -x $(FRAMEWORKS_RUN) || $(PYTHON) -m venv $(FRAMEWORKS)
	if $(FRAMEWORKS_RUN) $(INSTALL) ".[fl,report,dev,notebooks,flower,nvflare,ray,pfl,track,watch]"; then touch $@; else \
		$(FRAMEWORKS_RUN) $(INSTALL) ".[fl,report,dev,notebooks]" || exit 1; \
		for extra in flower nvflare ray pfl track watch; do $(FRAMEWORKS_RUN) $(INSTALL) ".[$$extra]" || \
			echo "WARNING: extra $$extra could not be installed: its tests will be skipped" >&2; \
		done; \
	fi

# 100 clients, 10 picked a round, as in the paper; method against method on the same five seeds.
demo: $(DEMO_STAMP)
	$(VENV)/bin/cvrcore compare fedavg fedcvr-bolt fedavg-averaged balanced-memory --clients 100 \
		--select 10 --target 0.9 --seeds 5 --out runs/demo-digits

test: $(STAMP)
	$(RUN) -m pytest --numprocesses 2

# The core without PyTorch, so that a new Python does not wait for it: make test-core PYTHON=python3.13
CORE := .venv-core-$(notdir $(PYTHON))
test-core:
	test -x $(CORE)/bin/python || $(PYTHON) -m venv $(CORE)
	@echo "Installing the core and what its tests need into $(CORE) (about 2 minutes)..."
	$(CORE)/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[dev]"
	$(CORE)/bin/python -m pytest -q tests --ignore tests/fl --ignore tests/frameworks --ignore tests/test_bench.py

# One process: a Ray cluster of one test process must not be found by another.
test-frameworks: $(FRAMEWORKS_STAMP)
	$(FRAMEWORKS_RUN) -m pytest tests/frameworks

# An environment of its own: APPFL and Flower want different versions of the same packages.
.venv-appfl/.installed: pyproject.toml constraints.txt tests/frameworks/appfl.txt
	test -x .venv-appfl/bin/python || $(PYTHON) -m venv .venv-appfl
	@echo "Installing APPFL into .venv-appfl (1 to 2 minutes)..."
	.venv-appfl/bin/python $(PACKAGES) --requirement tests/frameworks/appfl.txt
	.venv-appfl/bin/python $(EXTRA) dev | .venv-appfl/bin/python $(PACKAGES) --requirement /dev/stdin scipy threadpoolctl
	.venv-appfl/bin/python $(PACKAGES) --no-deps appfl
	touch $@

test-appfl: .venv-appfl/.installed
	.venv-appfl/bin/python -m pytest tests/frameworks/test_appfl.py

test-matrix: $(STAMP)  # both backends, no compiler, one and two threads, float32, old and new versions
	.ci/matrix

test-kernels: $(STAMP)  # Cython kernels with bounds checks, under AddressSanitizer
	.ci/kernels

coverage: $(STAMP) $(FRAMEWORKS_STAMP) .venv-appfl/.installed  # branches of cvrcore, kernels and adapters included
	.ci/coverage

mutants: $(STAMP)  # plants faults one at a time: the suite must notice each
	$(RUN) tests/mutants.py

fuzz: $(STAMP) $(FRAMEWORKS_STAMP)  # the fuzz and stateful tests, forty times as long
	CVRCORE_FUZZ=40 $(RUN) -m pytest -q --timeout 7200 tests/test_fuzz_states.py tests/test_crafted_states.py tests/test_interrupts.py tests/test_stateful.py tests/fl/test_fuzz_readers.py tests/fl/test_hostile_files.py
	CVRCORE_FUZZ=40 $(FRAMEWORKS_RUN) -m pytest -q --timeout 7200 tests/frameworks/test_fuzz_flower.py tests/frameworks/test_fuzz_legacy.py tests/frameworks/test_fuzz_nvflare.py tests/frameworks/test_fuzz_pfl.py

soak: $(STAMP)  # 20,000 rounds of every policy
	PYTHONPATH=. $(RUN) tests/soak.py

capture: $(STAMP)  # picks and weight that colluding attackers gain with the recommended guards
	$(RUN) -m bench.capture

# The index knows no local versions such as +cpu; an empty list would pass.
audit: $(STAMP)  # known holes in installed packages; needs the network, fails if one is skipped
	test -x .venv-audit/bin/python || $(PYTHON) -m venv .venv-audit
	.venv-audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit
	mkdir -p build
	$(RUN) -m pip freeze --exclude-editable > build/audit.txt
	sed -i 's/+.*//' build/audit.txt
	test -s build/audit.txt
	.venv-audit/bin/python -m pip_audit --strict --disable-pip --no-deps --requirement build/audit.txt

bench: $(STAMP)  # prints what is reached beside what is wanted
	$(RUN) -m bench

bench-check: $(STAMP)  # the same, and the exit status is 1 where a must is missed
	$(RUN) -m bench --check
	$(RUN) -m bench.reading --check

# Everything, about half an hour; brings docs/performance.md and its figures up to date.
# BENCH_JSON=file saves the record elsewhere than in bench/results/full.json.
bench-full: $(STAMP)
	$(RUN) -m bench --full $(if $(BENCH_JSON),--json $(BENCH_JSON))

bench-fl: $(STAMP)
	$(RUN) -m bench.bench_fl

lint: $(STAMP)
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

# sdist and wheel in dist/, from the tracked files; `dist-check` installs and tries them out.
$(DIST_STAMP): pyproject.toml
	@echo "Installing what a release needs into $(DIST) (about half a minute)..."
	test -x $(DIST_RUN) || $(PYTHON) -m venv $(DIST)
	$(DIST_RUN) $(EXTRA) release | $(DIST_RUN) -m pip install --quiet --disable-pip-version-check --requirement /dev/stdin
	touch $@

dist: $(DIST_STAMP)
	.ci/dist build

dist-check: dist
	.ci/dist check

# .venv-docs sees the packages of .venv and adds those of the extra docs: PyTorch is there once.
$(DOCS_STAMP): $(STAMP) pyproject.toml constraints.txt
	@echo "Installing what the documentation needs into $(DOCS) (about half a minute)..."
	test -x $(DOCS_RUN) || $(PYTHON) -m venv $(DOCS)
	$(RUN) $(SITE_PACKAGES) > "$$($(DOCS_RUN) $(SITE_PACKAGES))/packages-of-venv.pth"
	$(RUN) $(EXTRA) docs | $(DOCS_RUN) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --requirement /dev/stdin
	touch $@

# The site in build/docs, offline; open build/docs/index.html. Any warning is an error.
docs: $(DOCS_STAMP)
	rm -rf build/docs docs/api/generated
	$(DOCS_RUN) -m sphinx -q -W --keep-going -b html -d build/doctrees docs build/docs
	$(DOCS_RUN) docs/_ext/check_site.py build/docs

notebooks: $(DOCS_STAMP)  # runs them; STORE=--store writes their outputs back
	$(DOCS_RUN) docs/_ext/run_notebooks.py $(STORE)

settings: $(STAMP)  # docs/settings.md from the config classes
	$(RUN) -m fl.settings_page

clean:
	rm -rf $(VENV) $(FRAMEWORKS) $(DOCS) .venv-appfl .venv-core-* $(DIST) .venv-matrix .venv-audit build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks docs/api/generated docs/gallery
	find cvrcore cvrcore_ext fl bench tests -name __pycache__ -type d -prune -exec rm -rf {} +
	find cvrcore_ext -name '*.so' -delete
