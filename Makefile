# `make run` and `make test` do everything on a fresh clone: they need Python 3.11 or newer, g++ and pip.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
FILE ?= examples/vitamin_c.xyz
BASIS ?= def2-svp

# Tests run in several processes, a file in one; those that measure times come after them, on their own. Files of few
# tests are not always quick, so they do not come last. PySCF's threads would wait for each other at full load.
TEST_WORKERS ?= -n auto --dist loadfile --no-loadscope-reorder

export CMAKE_BUILD_PARALLEL_LEVEL ?= $(shell nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)
export PIP_DISABLE_PIP_VERSION_CHECK = 1

# The install points to this folder, so that Python sources need no new one; compiled sources do.
COMPILED = pyproject.toml CMakeLists.txt $(wildcard ffi_kernels/rcg/*.py ffi_kernels/runtime/* ffi_kernels/runtime_gpu/*)
# What the build itself needs, in the environment: so it compiles against the very JAX that will run.
BUILD_TOOLS = "scikit-build-core>=0.10" cmake ninja

.PHONY: run test install clean
.DEFAULT_GOAL := run

run: $(VENV)/installed
	$(BIN)/jaxqc scf $(FILE) --basis $(BASIS)

# All three run whatever the others find; the status is that of the worst.
test: $(VENV)/tested
	@status=0; \
	$(BIN)/ruff check . || status=1; \
	$(BIN)/pyright --project pyproject.toml --pythonpath $(BIN)/python || status=1; \
	OMP_NUM_THREADS=1 $(BIN)/pytest $(TEST_WORKERS) -m "not alone" $(PYTEST_ARGUMENTS) || status=1; \
	$(BIN)/pytest -m alone $(PYTEST_ARGUMENTS) || status=1; \
	exit $$status

install: $(VENV)/installed

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "jaxqc needs Python 3.11 or newer; run make PYTHON=python3.12, for example.")'
	$(PYTHON) -m venv $(VENV)

# JAX first: the build needs its headers, and without isolation pip does not fetch what a build requires.
$(VENV)/tools: pyproject.toml | $(VENV)/bin/python
	$(BIN)/pip install -q $(BUILD_TOOLS) "jax>=0.10,!=0.10.2"
	@touch $@

$(VENV)/installed: $(VENV)/tools $(COMPILED)
	@echo "Building the integral kernels (minutes, once) ..."
	$(BIN)/pip install -q --no-build-isolation -e .
	@touch $@

$(VENV)/tested: $(VENV)/installed
	$(BIN)/pip install -q --no-build-isolation -e ".[test]"
	@touch $@

clean:
	rm -rf $(VENV) build
