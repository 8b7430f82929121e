# Everything a developer or a newcomer runs. Only python3.11 or newer with venv and pip is needed; nothing is kept outside
# this folder.
#   PYTHON=...      the interpreter to start from; its torch is used if it has one
#   TORCH=...       what to install if it has none; the CPU build is enough for everything here
#   SHARED_DIR=...  the folder with the fault matrix and the peer's benchmark

PYTHON ?= $(shell for p in python3.11 python3 python; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo $$p; break; }; done)
TORCH ?= torch==2.13.0
SHARED_DIR ?= ../shared
REPEAT ?= 1
REPEAT_RACY ?= 5
VENV := .venv
PEER_VENV := .venv-peer
PIP := $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo test test-faults test-long lint bench bench-full clean
.DELETE_ON_ERROR:

demo: $(VENV)/installed
	$(VENV)/bin/traceml demo

test: $(VENV)/installed-test
	$(VENV)/bin/python -m pytest -n 2 -m "not long" --ignore=tests/e2e/test_faults.py
	$(VENV)/bin/python -m pytest -m "not long" tests/e2e/test_faults.py

test-long: $(VENV)/installed-test
	$(VENV)/bin/python -m pytest -m long

test-faults: $(VENV)/installed-test
	@if [ -f "$(SHARED_DIR)/faults/manifest.toml" ]; then \
		$(VENV)/bin/python -m tests.faults --shared "$(SHARED_DIR)" --repeat $(REPEAT) --repeat-racy $(REPEAT_RACY) \
			--readme README.md $(FAULTS); \
	else \
		echo "test-faults: skipped, no fault matrix in SHARED_DIR=$(SHARED_DIR)"; \
	fi

lint: $(VENV)/installed-test
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

bench: $(VENV)/installed-test
	SHARED_DIR="$(SHARED_DIR)" PEER_VENV=$(PEER_VENV) TORCH="$(TORCH)" $(VENV)/bin/python -m benchmarks

bench-full: $(VENV)/installed-test
	SHARED_DIR="$(SHARED_DIR)" PEER_VENV=$(PEER_VENV) TORCH="$(TORCH)" $(VENV)/bin/python -m benchmarks --full --readme

clean:
	rm -rf $(VENV) $(PEER_VENV) build dist

$(VENV)/installed: pyproject.toml
	@[ -n "$(PYTHON)" ] || { echo "no python3.11 or newer found; set PYTHON=..." >&2; exit 2; }
	@if $(PYTHON) -c 'import torch' 2>/dev/null; then \
		echo "using the torch of $(PYTHON)"; $(PYTHON) -m venv --system-site-packages $(VENV); \
	else \
		$(PYTHON) -m venv $(VENV); \
	fi
	$(PIP) --editable .
	@$(VENV)/bin/python -c 'import torch' 2>/dev/null || { echo "installing $(TORCH)"; $(PIP) $(TORCH); }
	@touch $@

$(VENV)/installed-test: $(VENV)/installed
	$(PIP) --editable ".[test]"
	@touch $@
