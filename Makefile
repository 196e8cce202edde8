# Two commands matter: `make demo` and `make test`. Both do all set-up themselves.
SHELL := /bin/bash
.DEFAULT_GOAL := help
BIN := .venv/bin
# Tests that touch no namespace, in a process for each core, which then has no core for a second thread; polars' look
# for work that small tables do not have. What hangs in C code, where no test's own timeout reaches, ends with its stacks.
UNPRIVILEGED := OMP_NUM_THREADS=1 POLARS_MAX_THREADS=1 $(BIN)/python -m pytest -q -m "not privileged and not slow" -n logical --maxprocesses 8 --dist loadfile \
  -o faulthandler_timeout=1000 -o faulthandler_exit_on_timeout=true
ONE_BY_ONE := $(BIN)/python -m pytest -q
# Python's own and pytest's rewritten modules are compiled once, whatever the environment says: collecting 9,000 tests takes
# 20 s without and 10 s with, in each process that does not know by its marks what it leaves out (tests/selection.py).
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup setup-tests demo test test-slow test-live check format bench bench-sweeps docs test-torch test-programs test-futures test-seeds test-properties test-crashes test-faults test-examples test-ray check-papers test-netem-vm image test-image proto constraints

help: ## say what there is
	@sed -nE 's/^([a-z-]+):.*## /\1\t/p' $(MAKEFILE_LIST) | while IFS=$$'\t' read -r target text; do \
	  fold -s -w 64 <<<"$$text" | while IFS= read -r line; do printf '%-14s %s\n' "$$target" "$$line"; target=; done; \
	done

setup: ## install what is missing: system packages, .venv, this package (TORCH_INDEX=url names an index for torch)
	@tools/setup.sh

setup-tests: ## the same, and what `make test` needs beside: Docker, whose service stays off, and Chromium
	@tools/setup.sh tests

demo: setup ## train a real model over an emulated network and say where the time went (root)
	@[ "$$(id -u)" = 0 ] || { echo "make demo needs root for network namespaces: run 'sudo make demo'" >&2; exit 3; }
	@$(BIN)/testbed run experiments/quickstart.yaml

check: setup ## the fast gate, without root: ruff, mypy, import-linter, tests that touch no namespace
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(UNPRIVILEGED) -m "not privileged and not slow and not browser"

test: setup-tests ## the whole check: everything above and the tests on real namespaces (root, 20 minutes)
	@[ "$$(id -u)" = 0 ] || { echo "make test needs root for network namespaces: run 'sudo make test' (or 'make check' without)" >&2; exit 3; }
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/python -m tests.both_halves '$(ONE_BY_ONE) -m "quiet and not slow"' \
	  '$(ONE_BY_ONE) -m "privileged and not slow and not quiet"' \
	  '$(BIN)/lint-imports' '$(BIN)/mypy' '$(UNPRIVILEGED) -m "not privileged and not slow and not quiet"'

format: setup ## format, and fix what ruff can
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: setup ## measure against gloo and theory: bench.json and a table (root, about 30 minutes)
	@[ "$$(id -u)" = 0 ] || { echo "make bench needs root for network namespaces: run 'sudo make bench'" >&2; exit 3; }
	@$(BIN)/testbed bench all --output bench.json

bench-sweeps: setup ## run every sweep of the package as it is: minutes, and whether all runs are valid (root, ONLY=names; more than an hour)
	@[ "$$(id -u)" = 0 ] || { echo "make bench-sweeps needs root for network namespaces: run 'sudo make bench-sweeps'" >&2; exit 3; }
	@$(BIN)/testbed bench sweeps --only "$(ONLY)"

test-torch: setup ## run torch's own distributed tests on gloo and testbed side by side, at world sizes 2 and 4 (minutes)
	@$(BIN)/python -m tests.torch_suite

test-programs: setup ## run 2000 random programs of collectives and messages on gloo and testbed (PROGRAMS=number; minutes)
	@$(BIN)/python -m tests.random_programs --programs $(or $(PROGRAMS),2000)

test-slow: setup-tests ## the tests that `make test` leaves out for their length: whole runs and trainings, one by one (root, half an hour)
	@[ "$$(id -u)" = 0 ] || { echo "make test-slow needs root for network namespaces: run 'sudo make test-slow'" >&2; exit 3; }
	@$(BIN)/python -m pytest -q -m slow

test-live: setup-tests ## how smoothly the live page of 64 links moves in Chromium, and what it costs, over a minute (LIVE_S=seconds)
	@LIVE_S=$(or $(LIVE_S),60) $(BIN)/python -m pytest -q -s tests/browser/test_live.py -k smoothly

docs: setup ## make the documentation as a site, build/docs/index.html: pages, specs, commands, docstrings (a minute)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@$(BIN)/python -m sphinx -q -W --keep-going -b html docs build/docs
	@echo "build/docs/index.html"

test-properties: setup ## the properties of all tests without root on new random examples, where `make test` repeats the same ones (minutes)
	@$(UNPRIVILEGED) -m "hypothesis and not privileged" --hypothesis-profile=exploring

test-crashes: setup ## kill -9 fifty processes of running experiments at random moments, clean, look for leftovers (root, KILLS=number, minutes)
	@[ "$$(id -u)" = 0 ] || { echo "make test-crashes needs root for network namespaces: run 'sudo make test-crashes'" >&2; exit 3; }
	@KILLS=$(or $(KILLS),50) $(BIN)/python -m pytest -q tests/crashes

check-papers: setup ## the models against the public logs of the papers, in a folder of yours (DATA=folder; docs/papers.md)
	@PAPERS_DATA="$(DATA)" $(BIN)/python -m pytest -q tests/papers

test-futures: setup ## 100,000 asynchronous operations on four ranks, each future complete when wait() returns; the protocol of messages on 20,000 programs (minutes)
	@FUTURE_CALLS=100000 PAIR_EXAMPLES=20000 $(BIN)/python -m pytest -q tests/contract/test_process_group.py tests/simulation/test_point_to_point.py -k "future_is_complete or simulation"

test-seeds: setup ## the aggregation protocol over 10,000 histories of late datagrams, in both ends' cores and in the kernel's program, and p4app-switchML's clients as often (root, SEEDS=number; an hour)
	@[ "$$(id -u)" = 0 ] || { echo "make test-seeds needs root for the kernel's program: run 'sudo make test-seeds'" >&2; exit 3; }
	@OMP_NUM_THREADS=1 EPOCH_SEEDS=$(or $(SEEDS),10000) SWITCHML_SEEDS=$(or $(SEEDS),10000) nice -n 10 $(BIN)/python -m pytest -q --timeout 0 -n logical --maxprocesses 8 \
	  tests/simulation/test_epochs.py tests/simulation/test_switchml.py tests/integration/test_program.py

test-faults: setup ## plant some fifty faults in running experiments, look whether the verdict names each (root, FAULT_REPEATS=number; ten minutes each)
	@[ "$$(id -u)" = 0 ] || { echo "make test-faults needs root for network namespaces: run 'sudo make test-faults'" >&2; exit 3; }
	@FAULT_REPEATS=$(or $(FAULT_REPEATS),1) $(BIN)/python -m pytest -q tests/sabotage

test-examples: setup ## run the examples that need accelerate, Lightning, DeepSpeed, torchft, hivemind (root, minutes, 200 MB)
	@[ "$$(id -u)" = 0 ] || { echo "make test-examples needs root for network namespaces: run 'sudo make test-examples'" >&2; exit 3; }
	@tools/setup_examples.sh
	@.venv-examples/bin/python -m pytest -q tests/examples

test-ray: setup ## sweeps over two machines of a real Ray cluster, which are two nodes on this one: killed, frozen, started again (root, minutes, 300 MB)
	@[ "$$(id -u)" = 0 ] || { echo "make test-ray needs root for network namespaces: run 'sudo make test-ray'" >&2; exit 3; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[ray]'
	@$(BIN)/python -m pytest -q tests/many_machines

test-netem-vm: setup ## prove the netem path in a virtual machine with Debian's kernel (root, a few minutes, no KVM needed)
	@tools/netem_vm.sh

image: setup ## build the image for `runtime: docker` (BASE=image to build upon, IMAGE=name; a few minutes, 1 GB)
	@tools/image.sh

test-image: setup-tests ## build that image with a Docker daemon of the tests' own and train in it (root, minutes, 3 GB)
	@[ "$$(id -u)" = 0 ] || { echo "make test-image needs root for network namespaces: run 'sudo make test-image'" >&2; exit 3; }
	@$(BIN)/python -m pytest -q tests/image

proto: setup ## regenerate the control planes' code from their .proto files
	@PATH="$(BIN):$$PATH" $(BIN)/python -m grpc_tools.protoc -I . --python_out=. --grpc_python_out=. --mypy_out=. --mypy_grpc_out=. testbed/control/*.proto testbed/traces/protobuf/*.proto switch_agg/control/*.proto switch_agg/switchml/*.proto

constraints: ## pin what is installed now as what is tested
	@{ echo "# What is tested, exactly. \`make setup\` installs with it. Made with: make constraints"; \
	   $(BIN)/pip list --format=freeze --exclude-editable --exclude pip | sed 's/+cpu//'; } > constraints.txt
	@[ ! -d .venv-examples ] || { echo "# What examples/with_*.py need beside this package, exactly as tested. Made with: make constraints"; \
	   $(BIN)/pip list --format=freeze --path .venv-examples/lib/python3*/site-packages; } > examples/requirements.txt
