# The two commands a newcomer needs: `make tour` and `make test`. Both create .venv when it is missing.
#
#   PYTHON=python3.12    the interpreter .venv is made from
#   PIP_ARGS=...         more arguments for pip (where to find a CPU-only or CUDA build of torch, for instance)
#   PYTEST_ARGS=...      more arguments for pytest
#   TOUR_ARGS=...        more arguments for the tour, such as --peers
#   SANITIZER_ARGS=...   arguments of the checked run, such as --suites native or --every 5

PYTHON ?= python3
VENV ?= .venv
PIP_ARGS ?=
PYTEST_ARGS ?=
TOUR_ARGS ?=
BENCH_ARGS ?=
SANITIZER_ARGS ?=
LAB_ARGS ?= $(shell [ "$$(id -u)" = 0 ] && echo --allow-root)
EXTRAS := notebook,gpu,grading,proof,polyhedral,backends,dev
BIN := $(VENV)/bin

# The stamp's name is a checksum of what decides the installation, so an unchanged environment is never reinstalled
# and a changed one always is, whatever the files' dates say.
KEY := $(shell cat pyproject.toml constraints.txt | cksum | cut -d ' ' -f 1)
STAMP := $(VENV)/.installed-$(KEY)

.PHONY: help install tour test test-all test-gpu test-sanitized lab bench lint format docs browser clean distclean

help:
	@echo "make tour      compile Example 1.1 for CPU and for sm_90, run it, print every stage, write tour.html"
	@echo "make test      run the tests                 make test-all     with the slow ones, an hour or two"
	@echo "make lab       open the notebooks            make test-gpu     only those that need a CUDA device"
	@echo "make bench     side-by-side runs against eager and torch.compile"
	@echo "make lint      ruff                          make docs         rebuild the generated pages of docs/"
	@echo "make test-sanitized     the tests that run kernels, every access of a kernel checked (docs/sanitizers.md)"
	@echo "make clean     remove what was built         make distclean    and .venv"

install: $(STAMP)

$(STAMP):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "staxlab needs Python 3.11 or later and $(PYTHON) is `$(PYTHON) --version 2>&1`:" \
	       "name another one, make PYTHON=python3.12 ..." >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { \
	  echo "no virtual environment could be made: install your system's python3-venv package" >&2; \
	  rm -rf $(VENV); exit 1; }
	@echo "installing staxlab[$(EXTRAS)] into $(VENV): once, a minute or more (details in $(VENV)/install.log)"
	@$(BIN)/python -m pip install --disable-pip-version-check $(PIP_ARGS) -c constraints.txt -e '.[$(EXTRAS)]' \
	  > $(VENV)/install.log 2>&1 || { tail -n 20 $(VENV)/install.log >&2; exit 1; }
	@rm -f $(VENV)/.installed-*
	@touch $@

tour: $(STAMP)
	@$(BIN)/staxlab tour --html tour.html $(TOUR_ARGS)

test: $(STAMP) browser
	@$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal $(PYTEST_ARGS)

test-all: $(STAMP) browser
	@$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal --slow $(PYTEST_ARGS)

test-gpu: $(STAMP)
	@$(BIN)/python -m pytest -m gpu --slow $(PYTEST_ARGS)

test-sanitized: $(STAMP)
	@$(BIN)/python -m benchmarks.sanitizers $(SANITIZER_ARGS)

lab: $(STAMP)
	@$(BIN)/jupyter lab $(LAB_ARGS) notebooks/00_tour.ipynb

bench: $(STAMP)
	@$(BIN)/python -m benchmarks $(BENCH_ARGS)

lint: $(STAMP)
	@$(BIN)/ruff check .

format: $(STAMP)
	@$(BIN)/ruff format .

docs: $(STAMP)
	@$(BIN)/python docs/build_index.py
	@$(BIN)/python docs/build_coverage.py
	@$(BIN)/python docs/build_attention_patterns.py

browser:
	@.ci/browser

clean:
	rm -rf build dist *.egg-info .pytest_cache .ruff_cache .hypothesis tour.html
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV)
