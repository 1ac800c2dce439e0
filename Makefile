# Every target sets up .venv first, and again only when pyproject.toml or constraints.txt have changed.
#   make train        train the seven levels (RUN=directory, ARGS="flags of dagnn train")
#   make test         the tests, 8 minutes at most on 2 cores;  make test-all adds the slow ones
#   make test-faults  kills, failing disks, signals, several processes and hostile files in full (about 20 minutes)
#   make test-processors  make test as on other processors, one after another: narrower vectors in PyTorch, MKL, oneDNN
#                     and our own kernels (an hour on 2 cores; what this processor has not, its next narrower does)
#   make test-integrations  inside transformers and Lightning, with the oldest supported versions and the newest
#   make test-triton  the kernels for GPUs, in Triton's interpreter, which is slow, and compiled (installs triton, 1 GB)
#   make lint         ruff and mypy
#   make bench        every benchmark in full;  make bench-NAME runs benchmarks/NAME.py (ARGS="--quick")
#   make docs         the site, in site/

PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
# Where pip also looks for torch: on Linux PyPI's own is built for CUDA, with gigabytes of libraries. Empty: PyPI alone.
TORCH_INDEX ?= $(if $(filter Linux,$(shell uname -s)),https://download.pytorch.org/whl/cpu)
BIN := .venv/bin
INSTALLED := .venv/installed
DOCS_INSTALLED := .venv/docs-installed
PEERS_INSTALLED := .venv/peers-installed
BENCHMARKS := $(filter-out __init__ harness, $(basename $(notdir $(wildcard benchmarks/*.py))))
# One thread per test worker: two workers with two threads each would fight over two cores. Each worker takes one half
# of the tests in their order, and then from what is left of the other's: a module's fixtures and the machine code of
# numba are made by one of them, where tests that are dealt out in turn have both make them.
PYTEST := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

.PHONY: help install train test test-all test-triton test-integrations test-faults test-processors lint format bench docs clean
.DEFAULT_GOAL := help

help:
	@sed -n 's/^#   //p' Makefile

install: $(INSTALLED)

# The group `dev` is read by Python itself: `pip install --group` needs a newer pip than many machines have.
$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; old = sys.version_info < (3, 11); old and sys.stderr.write("dagnn needs Python 3.11 or newer, and $(PYTHON) is %s: name another, such as make install PYTHON=python3.12\n" % sys.version.split()[0]); sys.exit(old)'
	@# One of an older Python, or half made, is made anew.
	@$(BIN)/python -c 'import pip, tomllib' 2>/dev/null || { rm -rf .venv; $(PYTHON) -m venv .venv; } || { rm -rf .venv; exit 1; }
	$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["dependency-groups"]["dev"], sep="\n")' > .venv/dev.txt
	@# Out of reach, the index would be tried again and again for every package.
	@index="$(addprefix --extra-index-url ,$(TORCH_INDEX))"; \
	if [ -n "$$index" ] && ! $(BIN)/python -c 'import sys, urllib.request as web; web.urlopen(sys.argv[1], timeout=10)' $(TORCH_INDEX)/torch/ 2>/dev/null; then \
	  echo "$(TORCH_INDEX) is out of reach: torch comes from where pip finds it" >&2; index=; fi; \
	$(BIN)/python -m pip install --quiet $$index -c constraints.txt -e '.[all]' -r .venv/dev.txt
	touch $@

train: $(INSTALLED)
	$(BIN)/dagnn train $(if $(RUN),--run-directory $(RUN)) $(ARGS)

test: $(INSTALLED)
	$(PYTEST) -m "not slow" $(ARGS)

test-all: $(INSTALLED)
	$(PYTEST) -m "slow or not slow" $(ARGS)

# Environments on top of .venv, whose torch they share; what pip installs in them comes first.
OLDEST_INTEGRATIONS := transformers==5.17.* accelerate==1.15.* lightning==2.6.*
NEWEST_INTEGRATIONS := transformers accelerate lightning
test-integrations: $(INSTALLED)
	@site=$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'); failed=; \
	for age in oldest newest; do \
	  folder=.venv/$$age; wanted="$(NEWEST_INTEGRATIONS)"; \
	  if [ $$age = oldest ]; then wanted="$(OLDEST_INTEGRATIONS)"; fi; \
	  [ -d $$folder ] || $(BIN)/python -m venv $$folder || exit 1; \
	  echo "$$site" > $$($$folder/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/dagnn-venv.pth; \
	  $$folder/bin/python -m pip install --quiet --upgrade $$wanted || exit 1; \
	  echo "== $$age: $$($$folder/bin/python -m pip list 2>/dev/null | grep -E '^(transformers|accelerate|lightning) ' | tr -s ' \n' ' ')"; \
	  OMP_NUM_THREADS=1 PYTHONPATH=src $$folder/bin/python -m pytest -q -m "slow or not slow" tests/integrations 'tests/test_tutorials.py::test_a_page_prints_and_draws_what_it_shows[other_trainers]' $(ARGS) || failed="$$failed $$age"; \
	done; echo "failed:$${failed:- none}"; test -z "$$failed"

# An environment on top of .venv, whose packages it shares.
test-triton: $(INSTALLED)
	@site=$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'); folder=.venv/triton; \
	[ -d $$folder ] || $(BIN)/python -m venv $$folder || exit 1; \
	echo "$$site" > $$($$folder/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/dagnn-venv.pth; \
	$$folder/bin/python -m pip install --quiet "triton>=3.4" || exit 1; \
	OMP_NUM_THREADS=1 PYTHONPATH=src $$folder/bin/python -m pytest -q -n 2 -m "slow or not slow" tests/kernels/gpu $(ARGS)

PROCESSORS := ATEN_CPU_CAPABILITY=default ATEN_CPU_CAPABILITY=avx2 ATEN_CPU_CAPABILITY=avx512 \
	MKL_ENABLE_INSTRUCTIONS=SSE4_2 MKL_ENABLE_INSTRUCTIONS=AVX2 ONEDNN_MAX_CPU_ISA=SSE41 ONEDNN_MAX_CPU_ISA=AVX2 \
	DAGNN_VECTOR_BYTES=16 DAGNN_VECTOR_BYTES=32 DAGNN_VECTOR_BYTES=64

# Every setting runs, whatever another found; a capability that the processor lacks PyTorch would not start with.
test-processors: $(INSTALLED)
	@failed=; for setting in $(PROCESSORS); do \
	  if [ $$setting = ATEN_CPU_CAPABILITY=avx512 ] && ! grep -q avx512f /proc/cpuinfo; then \
	    echo "== $$setting: skipped, this processor has no AVX-512"; continue; fi; \
	  echo "== $$setting"; env $$setting $(PYTEST) -m "not slow" $(ARGS) || failed="$$failed $$setting"; \
	done; echo "failed:$${failed:- none}"; test -z "$$failed"

# Alone on the machine: the kill storm and the signals are about moments.
test-faults: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "slow or not slow" tests/faults tests/training $(ARGS)
	$(BIN)/python scripts/remove_guards.py

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# What benchmarks compare with, one by one: a peer that does not install is told, and its rows are left out.
$(PEERS_INSTALLED): $(INSTALLED)
	$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["dependency-groups"]["peers"], sep="\n")' > .venv/peers.txt
	@while read -r peer; do $(BIN)/python -m pip install --quiet -c constraints.txt "$$peer" || echo "not installed: $$peer" >&2; done < .venv/peers.txt
	touch $@

# All of them run, whatever one says; the exit code tells whether any missed.
bench: $(PEERS_INSTALLED)
	@failed=; for name in $(BENCHMARKS); do echo; $(BIN)/python -m benchmarks.$$name $(ARGS) || failed="$$failed $$name"; done; \
	if [ -n "$$failed" ]; then echo "missed:$$failed" >&2; exit 1; fi

bench-%: $(PEERS_INSTALLED)
	$(BIN)/python -m benchmarks.$* $(ARGS)

$(DOCS_INSTALLED): docs/requirements.txt $(INSTALLED)
	$(BIN)/python -m pip install --quiet -c constraints.txt -r docs/requirements.txt
	touch $@

docs: $(DOCS_INSTALLED)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:
	rm -rf build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
