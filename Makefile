# Everything a fresh machine needs is Python 3.11 or newer, pip and make: each target installs what
# it uses into .venv first, and again when pyproject.toml or constraints.txt change.

PYTHON ?= python3
PYTEST_ARGS ?=

BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: help demo test test-vllm lint docs bench peers matrix clean
.DELETE_ON_ERROR:

help:
	@echo 'make demo    compare policies on modelled traffic; writes a report to demo/'
	@echo 'make test    run the tests; PYTEST_ARGS="-k kernel -x" is passed on'
	@echo 'make test-vllm   the part that needs vLLM, in .venv-vllm; `make test` runs it too'
	@echo 'make lint    ruff, mypy and the import contracts'
	@echo 'make docs    build the documentation into site/; run its code, check its links'
	@echo 'make bench   the quick benchmarks'
	@echo 'make peers   the same requests through other simulators (downloads them)'
	@echo 'make matrix  a part of the tests with other Pythons, lowest and newest dependencies'
	@echo 'make clean   remove what these commands made, .venv included'

demo: .venv/installed
	$(BIN)/queuesmith compare azure_2023_code@model --output demo
	@for report in demo/*.html; do test -f "$$report" && echo "Open $$report in a browser."; done

test: .venv/installed-test
	$(BIN)/python -m pytest -m "not vllm" --numprocesses auto --dist loadfile $(PYTEST_ARGS)
	@VLLM_OPTIONAL=$(if $(VLLM_REQUIRED),,1) $(MAKE) --no-print-directory test-vllm \
	  MAY_CHOOSE_NONE=$(if $(PYTEST_ARGS),1)

# In an environment of its own, since vLLM pins everything. Where that cannot be made it says why and
# fails, but for `make test` if VLLM_REQUIRED is not set, as it is in .ci/run.
# The engine runs in a process of its own, as in a server: vLLM does not start beside numba.
VLLM_ENGINE := tests/vllm/test_vllm_engine.py

test-vllm:
	@requirements/with_vllm.sh python -c 'import vllm.v1.core.sched.scheduler'
	@chosen=; for files in "$(VLLM_ENGINE)" "tests/vllm --ignore $(VLLM_ENGINE)"; do \
	  requirements/with_vllm.sh python -m pytest -m vllm $$files $(PYTEST_ARGS); status=$$?; \
	  case $$status in 0) chosen=1;; 5) $(if $(PYTEST_ARGS),:,exit 5);; *) exit $$status;; esac; \
	done; \
	[ -n "$${chosen}$(MAY_CHOOSE_NONE)" ] || { echo 'no test with vLLM was chosen' >&2; exit 5; }

lint: .venv/installed-lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: .venv/installed-test .venv/installed-docs
	PYTHONPATH=docs/tools $(BIN)/python -m zensical build --clean --strict
	$(BIN)/python -m pytest tests/test_docs.py tests/test_docs_site.py tests/test_readme.py \
	  $(PYTEST_ARGS)

bench: .venv/installed
	@for script in $(filter-out benchmarks/peers.py benchmarks/simulators.py benchmarks/fuzz.py benchmarks/goodness.py benchmarks/results.py benchmarks/vllm%.py benchmarks/plugin.py,$(wildcard benchmarks/*.py)); do \
	  echo "$$script"; $(BIN)/python "$$script" || exit 1; \
	done

peers: .venv/installed
	$(BIN)/python benchmarks/peers.py

matrix: .venv/installed
	$(BIN)/python requirements/matrix.py $(COMBINATIONS)

clean:
	rm -rf .venv .venv-vllm demo site .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests examples benchmarks -name __pycache__ -prune -exec rm -rf {} +

# Dependency groups need pip 25.1; a new venv may carry an older one.
.venv/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit( \
	  f"queuesmith needs Python 3.11 or newer and {sys.executable} is {sys.version.split()[0]}; " \
	  "name another one: make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv
	$(PIP) install --upgrade 'pip>=25.1'
	$(PIP) install --constraint constraints.txt --editable .
	@touch $@

.venv/installed-%: .venv/installed
	$(PIP) install --constraint constraints.txt --group $*
	@touch $@
