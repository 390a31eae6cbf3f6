# Everything runs in a virtual environment that these rules make; only Python 3.11 or newer is needed.
#
#   make crosscheck   print the fitness-for-use paper's Table 2 beside certified values
#   make test         run the test suite           (DIST=wheel tests an installed wheel, doctests included)
#   make check        run the tests of one family or one folder of tests: FAMILY=fitness, ROOM=publishing
#   make test-numeric run the tests that compute: all folders but tests/house
#   make test-lowest  run these on the lowest versions that pyproject.toml allows, in .venv-lowest
#   make test-extras  run the tests of the extras `training` and `oracles`, which the suite leaves out without them
#   make test-pages   run the examples of all pages, of which the suite runs those of the first ones
#   make docs         the same, and the commands of the pages, whose numbers are compared with what these print
#   make site         build the pages with their examples run, and the reference, into build/site (open index.html there)
#   make test-site    build the site and hold it together: links, cells, and in a browser, where there is one, its drawings
#   make lint         ruff and mypy
#   make bench        measure the solvers, gaps first
#   make mutants      change signs, bounds and allowances, one at a time, and see whether the tests fail
#   make coverage     run the test suite and show which lines it does not reach
#   make test-anywhere  run it with every kernel of linear algebra, with examples and problems drawn anew, on other Pythons
#   make dev          an editable install, which editors, type checkers and doctests understand

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
DIST ?= editable
ARGS ?=

# Tests are compiled once: without this, each worker would rewrite their assertions anew.
unexport PYTHONDONTWRITEBYTECODE

bin := $(VENV)/bin
comma := ,
clean_build := rm -rf build/lib build/bdist.* dist *.egg-info
rooms := core reference fast crosscheck studies publishing command
# An editable install is a folder of links, made anew where a file came or went.
files := $(shell find $(rooms) -name '*.py*' ! -path '*/__pycache__/*' | LC_ALL=C sort | cksum | cut -d ' ' -f 1)
stamp := $(VENV)/.installed-$(files)
installed := $(stamp)$(if $(wildcard build/__editable__*),,-without-links)
lowest := import tomllib; required = tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"]; \
	print(*(each.replace(">=", "==") for each in required), sep="\n")

.PHONY: install test check mutants coverage test-extras test-lowest test-numeric test-pages test-slow test-anywhere test-site docs site crosscheck bench lint format dev clean

$(bin)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "dualmech needs Python 3.11 or newer, set PYTHON=")'
	$(PYTHON) -m venv $(VENV)
	$(bin)/python -m pip install --quiet --upgrade pip

ifeq ($(DIST),wheel)
install: $(bin)/python
	$(clean_build)
	$(bin)/python -m pip wheel --quiet --no-deps --wheel-dir dist .
	$(bin)/python -m pip install --quiet --force-reinstall --no-deps dist/*.whl
	$(bin)/python -m pip install --quiet "$$(ls dist/*.whl)[dev]"
else
install: $(installed)

$(installed): pyproject.toml build_backend.py | $(bin)/python
	$(clean_build)
	$(bin)/python -m pip install --quiet --editable '.[dev]'
	rm -f $(VENV)/.installed-*
	touch $(stamp)
endif

test: install
	$(bin)/python -m pytest $(ARGS)
	$(bin)/python -m pytest --doctest-modules --pyargs dualmech

folders := $(sort $(filter-out __pycache__,$(notdir $(patsubst %/,%,$(wildcard tests/*/ tests/*/*/)))))
families := $(filter-out __pycache__,$(patsubst tests/problems/%/,%,$(wildcard tests/problems/*/)))

check: install
	$(if $(filter $(families),$(FAMILY))$(filter $(folders),$(ROOM)),,$(error FAMILY must be one of $(families), or ROOM one of $(folders)))
	$(if $(and $(FAMILY),$(ROOM)),$(error FAMILY or ROOM, not both))
	$(bin)/python -m pytest -m "$(FAMILY)$(ROOM) and not slow" $(ARGS)

# Tests that import what only these extras install.
extras := tests/geometry/test_participation.py tests/mechanisms/test_step_noise.py \
	tests/problems/common/test_common_solvers.py tests/studies/papers/test_benchmarks.py

test-extras: install
	$(bin)/python -m pip install --quiet $(if $(filter wheel,$(DIST)),"$$(ls dist/*.whl)[training$(comma)oracles]",--editable '.[training$(comma)oracles]')
	$(bin)/python -m pytest -rs $(extras) $(ARGS)

# Another kernel, or other versions of libraries, change numbers; `tests/house` holds the house.
test-numeric: install
	$(bin)/python -m pytest --ignore=tests/house $(ARGS)

test-lowest: $(bin)/python
	$(bin)/python -c '$(lowest)' > $(abspath $(VENV)-lowest.txt)
	PIP_CONSTRAINT=$(abspath $(VENV)-lowest.txt) $(MAKE) test-numeric VENV=$(VENV)-lowest

# Slow tests, all or in parts: `make test-slow PART=papers`. What would fill the memory fails instead.
slow_judge := tests/command tests/crosscheck tests/fast tests/geometry tests/mechanisms tests/problems tests/publishing tests/reference tests/workloads
slow_papers := tests/studies
slow_hostile := tests/house/test_hostile.py
slow_random := tests/house/test_conformance.py tests/house/test_metamorphic.py tests/house/test_soak.py
# One process there, which runs each command once, as many at a time as there are cores.
slow_claims := tests/house/test_claims.py -n 0 -k "not findings or findings_common"
slow_findings := tests/house/test_claims.py -n 0 -k "findings.md"
slow_topics := tests/house/test_claims.py -n 0 -k "findings_local or findings_scale or findings_softmax"
slow_eigen := tests/house/test_claims.py -n 0 -k "findings_eigen and not Relative"
slow_relative := tests/house/test_claims.py -n 0 -k "findings_eigen and Relative"
PARTS := judge papers hostile random claims findings topics eigen relative
PART ?= $(PARTS)

# Each run draws its own examples and order; `make test-slow SEED=…` runs one again.
ifndef SEED
SEED := $(shell od -An -N3 -tu4 /dev/urandom | tr -d ' ')
endif
drawn := --hypothesis-profile=drawn --hypothesis-seed=$(SEED) -p randomly --randomly-seed=$(SEED)

test-slow: install
	@echo "examples and order of SEED=$(SEED)"
	ulimit -v 12000000; set -e; $(foreach part,$(PART),$(bin)/python -m pytest -m slow $(drawn) $(slow_$(part)) $(ARGS);)

coverage: install
	$(bin)/python -m pytest --cov --cov-report=term:skip-covered $(ARGS)

mutants: install
	$(bin)/python tests/mutants.py $(ARGS)

test-anywhere: install
	$(bin)/python tests/anywhere.py $(ARGS)

test-pages: install
	$(bin)/python -m pytest -m "slow or not slow" tests/house/test_docs.py $(ARGS)

docs: test-pages
	$(bin)/python -m pytest -m "slow or not slow" -n 0 tests/house/test_claims.py $(ARGS)

ifeq ($(DIST),wheel)
test-site: install
	$(bin)/python -m pip install --quiet "$$(ls dist/*.whl)[site]"
else
test-site: $(VENV)/.site
endif
	$(bin)/python -m pytest -m "slow or not slow" -n 0 -rs tests/house/test_site.py tests/house/test_dragged.py \
		tests/house/test_notebook.py $(ARGS)

$(VENV)/.site: $(installed)
	$(bin)/python -m pip install --quiet --editable '.[site]'
	touch $@

site: $(VENV)/.site
	rm -rf build/site build/pages build/jupyter_execute
	mkdir -p build/pages
	$(bin)/sphinx-build --quiet --fail-on-warning --keep-going --jobs 2 -c docs build/pages build/site

crosscheck: install
	$(bin)/dualmech crosscheck $(ARGS)

bench: install
	$(bin)/python -m dualmech.studies.benchmarks $(ARGS)

lint: install
	$(bin)/ruff format --check .
	$(bin)/ruff check .
	rm -rf build/typecheck
	$(bin)/python -m pip install --quiet --no-deps --target build/typecheck .
	MYPYPATH=build/typecheck $(bin)/mypy -p dualmech
	MYPYPATH=build/typecheck:tests $(bin)/mypy tests

format: install
	$(bin)/ruff check --fix .
	$(bin)/ruff format .

dev: install

clean:
	rm -rf build dist *.egg-info .venv .venv-* .pytest_cache .hypothesis .mypy_cache .ruff_cache
