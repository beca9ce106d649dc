# Two commands: `make serve` and `make test`. Everything they make lies in .venv and in the model cache.
MODEL ?= smollm2-135m
RANKS ?= 2
HOST ?= 127.0.0.1
PORT ?= 8100
# The first that is new enough: `python3` of Apple's developer tools is 3.9.
NEWER := python3.14 python3.13 python3.12 python3.11
PYTHON ?= $(or $(shell for p in python3 $(NEWER) $(addprefix /opt/homebrew/bin/,$(NEWER)); do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$p && break; done),python3)
# More than the cores that are left over: many tests wait for processes to start.
JOBS ?= 3
VENV := .venv
BIN := $(VENV)/bin
# What this platform needs besides the package itself: nothing on a Mac, CUDA wheels where a driver answers.
EXTRA := $(shell if [ "$$(uname -s)" = Darwin ]; then echo; elif nvidia-smi >/dev/null 2>&1; then echo cuda13; else echo cpu; fi)
PACKAGE := .$(if $(EXTRA),[$(EXTRA)])
# CI installs the versions in the lock; everybody else gets what the ranges in pyproject.toml allow.
CONSTRAINTS ?=
PYTEST := $(BIN)/python -m pytest -m "not system"
# Tests start some hundreds of processes: where the environment forbids Python to keep bytecode, each would compile it all.
COMPILE := @$(BIN)/python -m compileall -q src tests
PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check $(if $(CONSTRAINTS),--constraint $(CONSTRAINTS))

.PHONY: serve test test-times test-system lint format soak soak-cache soak-disconnects chaos fuzz bench protos lock clean help

help: ## Show this list.
	@sed -n 's/^\([a-z-]*\):.*## /\1  /p' $(MAKEFILE_LIST) | column -t -s '  '

serve: $(VENV)/installed ## Serve MODEL over RANKS local ranks on HOST:PORT.
	$(BIN)/chorus serve $(MODEL) --ranks $(RANKS) --host $(HOST) --port $(PORT)

test: $(VENV)/installed-dev ## Run every test that needs neither root nor system packages, or those that K names.
	$(COMPILE)
	$(PYTEST) $(if $(K),-k "$(K)",-n $(JOBS) --dist loadfile)

test-times: $(VENV)/installed-dev ## Run the same tests, write what each file takes to tests/times.json, show the 20 slowest.
	$(COMPILE)
	$(PYTEST) -n $(JOBS) --dist loadfile --write-times --durations 20

test-system: $(VENV)/installed-dev ## Run the tests that need root, system packages or a package registry.
	$(BIN)/python -m pytest -m system

lint: $(VENV)/installed-dev ## Check style and types.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --platform darwin --cache-dir .mypy_cache/darwin src/chorus
	$(BIN)/lint-imports --no-logo
	$(BIN)/python scripts/package_table.py --check

format: $(VENV)/installed-dev ## Put style right.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/installed-dev ## Measure against peers in the same run; results go to benchmarks/results/.
	$(BIN)/python -m benchmarks $(BENCH)

soak: $(VENV)/installed-dev ## Load a server for SECONDS (600) and check that nothing leaks.
	$(BIN)/python -m benchmarks.soak --seconds $(or $(SECONDS),600) --load $(or $(LOAD),0)

soak-cache: $(VENV)/installed-dev ## Hold CONVERSATIONS (300) of SEED (1) with each kind of model and look at every answer; or press for PRESSURE seconds.
	$(BIN)/python -m tests.soak_cache$(if $(PRESSURE),.pressure --seconds $(PRESSURE), --conversations $(or $(CONVERSATIONS),300)) --seed $(or $(SEED),1)

soak-disconnects: $(VENV)/installed-dev ## Leave a server at every moment of REQUESTS (1000) requests of SEED (1), also while ranks are lost, and look what is left.
	$(BIN)/python -m tests.soak_disconnects --requests $(or $(REQUESTS),1000) --seed $(or $(SEED),1)

chaos: $(VENV)/installed-dev ## Let FAULTS (200) of SEED (1) happen under clients of every protocol; WRITE=1 puts the table into docs/reliability.md.
	$(BIN)/python -m tests.chaos --faults $(or $(FAULTS),200) --localai 20 --links 5 --seed $(or $(SEED),1) $(if $(WRITE),--write)

fuzz: $(VENV)/installed-dev ## Send REQUESTS (20000) hostile requests of SEED (1) to a server; then more of what parsers read.
	$(BIN)/python -m tests.fuzz --requests $(or $(REQUESTS),20000) --seed $(or $(SEED),1)
	$(BIN)/python -m tests.fuzz --requests 2000 --seed $(or $(SEED),1) --no-keys
	$(BIN)/python -m pytest tests/fuzz -n $(JOBS) --hypothesis-profile long --hypothesis-seed $(or $(SEED),1)

protos: ## Generate the code under src/chorus/messages/proto again.
	$(PYTHON) -m venv $(VENV)-protos
	$(VENV)-protos/bin/python -m pip install --quiet "grpcio-tools==1.76.0"
	$(VENV)-protos/bin/python -m grpc_tools.protoc -Isrc --python_out=src --pyi_out=src --grpc_python_out=src src/chorus/messages/proto/*.proto

lock: $(VENV)/installed-dev ## Write the versions installed now into the lock that CI uses.
	$(BIN)/python -m pip freeze --exclude-editable | grep -v '^mlx-chorus' > requirements-lock.txt

clean: ## Remove what make made here.
	rm -rf $(VENV) $(VENV)-protos build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .fuzz

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit("Chorus needs Python 3.11 or newer, this is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: pyproject.toml $(VENV)/bin/python
	$(PIP_INSTALL) --editable "$(PACKAGE)"
	touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(BIN)/python scripts/dev_requirements.py > $(VENV)/dev-requirements.txt
	$(PIP_INSTALL) --requirement $(VENV)/dev-requirements.txt
	touch $@
