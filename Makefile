# Everything needs only Python >= 3.11 and make. The environment is .venv; its stamp follows the two files
# that say what goes into it.
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.stamp
JOBS   ?= 2
EXPECT ?= t0,t1,t2
EXTRAS ?= compile,dev,oracle
OUT    ?= out
PROMPT ?= A transaction is a sequence of operations that

.PHONY: help venv demo test test-quick check docs nightly clean
.DEFAULT_GOAL := help

help:            ## this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile | expand -t 24

venv: $(STAMP)   ## set up .venv

$(STAMP): pyproject.toml constraints.txt
	@python=; for p in $(PYTHON) python3.11 python3.12 python3.13 python3; do \
	    $$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	    && python=$$p && break; done; \
	test -n "$$python" || { echo "make: needs Python 3.11 or newer with venv (set PYTHON=...)" >&2; exit 1; }; \
	echo "setting up $(VENV) with $$($$python --version)"; \
	$$python -m venv --clear $(VENV)
	$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $@

demo: $(STAMP)   ## compile examples/k3-nano for the CPU, generate text, cross-build for gb300 and mi355x
	@K3C=$(BIN)/k3c OUT=$(OUT)/demo PROMPT='$(PROMPT)' sh examples/demo.sh

test: $(STAMP)   ## every test that this machine can run
	$(BIN)/python -m pytest -n $(JOBS) --expect $(EXPECT) $(ARGS)

test-quick: $(STAMP)  ## the tests of under two minutes: no GPU toolchain, no device, nothing slow
	$(BIN)/python -m pytest -n $(JOBS) -m "not t2 and not t3 and not slow and not nightly" $(ARGS)

check: $(STAMP)  ## format, lint, types, import floors, size table
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/pyright --pythonpath $(BIN)/python
	@$(BIN)/python tests/size_table.py

docs: $(STAMP)   ## regenerate the pages of docs/ that come from the source
	$(BIN)/python -m k3compiler.cli.docs docs
	$(BIN)/python -m k3compiler.dialects.docs docs/ops.md

nightly: $(STAMP)  ## minutes: the full K3 config for gb300 and mi355x, cold, cached, twice the same bytes
	$(BIN)/python -m pytest -m nightly --expect $(EXPECT) $(ARGS)

clean:           ## remove what make built (not .venv)
	rm -rf $(OUT) build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
