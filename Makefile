# `make demo` and `make test` are all that a newcomer needs; both make .venv first. `make help` lists the rest.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# The first interpreter that is new enough; `make PYTHON=/path/to/python test` overrides the choice.
IS_NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for p in python3.11 python3 python3.12 python3.13; do \
	if "$$p" -c '$(IS_NEW_ENOUGH)' 2>/dev/null; then echo "$$p"; break; fi; done)
UV_VERSION := 0.13.8
TORCH_VERSION := 2.15.0

.PHONY: help demo test test-fast test-faults test-torch fuzz lint format bench bench-worker bench-analyze bench-operators \
	bench-recordings bench-agent bench-scale bench-scale-out bench-store bench-torch plot-growth chaos check-metamorphic test-gpu licences sbom site size torch lock clean python java maven

help:  ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 28

demo: $(STAMP)  ## The main job in under a minute: a simulated job, a NIC that turns slow, the verdict
	@$(BIN)/irregulars demo

test: java maven $(STAMP)  ## Lint, types and tests, on a real broker and database (needs Java 17 and Maven)
	@$(BIN)/python -m tests.run_checks

test-fast: $(STAMP)  ## The tests that need no broker, database or browser (two to three minutes)
	@$(BIN)/python -m tests.run_checks --fast

test-faults: java maven $(STAMP)  ## Kill, stall and poison workers, broker and database; slow tests, pages in a browser, guides typed (25 minutes); OPTIONS='--within-s 300'
	@$(BIN)/python -m tests.run_checks --faults $(OPTIONS)

test-torch: java maven torch $(STAMP)  ## The hook in real training jobs (needs torch, several GB; two minutes)
	@$(BIN)/python -m tests.run_checks --torch

lint: $(STAMP)  ## Lint and types only
	@$(BIN)/python -m tests.run_checks --lint

format: $(STAMP)  ## Let ruff sort imports and lay out the code
	@$(BIN)/ruff check --fix-only --quiet . && $(BIN)/ruff format --quiet .

fuzz: java maven $(STAMP)  ## Mutate messages: a minute through decoders, 10,000 through a worker (ten minutes); OPTIONS="--seed 2"
	@$(BIN)/python -m tests.fuzz.run --seconds 60 && $(BIN)/python -m tests.fuzz.worker_run $(OPTIONS)

bench: java maven $(STAMP)  ## One table of all figures beside the committed ones (ten minutes); OPTIONS=--all, OPTIONS="--only worker"
	@$(BIN)/python -m tests.benchmarks.table $(OPTIONS)

bench-worker: java maven $(STAMP)  ## Operators per second through one worker, beside the limits of Faust and Kafka
	@$(BIN)/python -m tests.benchmarks.bench_worker $(OPTIONS)

bench-scale-out: java maven $(STAMP)  ## Operators per second through 1 to 8 workers, and the costs of a message (15 minutes, root)
	@mkdir -p build && $(BIN)/python -m tests.benchmarks.bench_scale_out --json build/scale-out.json $(OPTIONS) | \
		tee build/scale-out.md

bench-scale: $(STAMP)  ## What one job costs, from 128 to 100,000 ranks (half an hour, 12 GiB); OPTIONS="--ranks 128 8192"
	@mkdir -p build && $(BIN)/python -m tests.benchmarks.bench_scale --json build/bench-scale.json $(OPTIONS) | \
		tee build/bench-scale.md

plot-growth: $(STAMP)  ## infra/docs/growth.png; OPTIONS=build/bench-scale.json takes what bench-scale measured into it first
	@$(BIN)/python -m tests.benchmarks.table.growth $(OPTIONS)

bench-store: $(STAMP)  ## Operators per second that the sink stores in ClickHouse, beside what the database takes
	@$(BIN)/python -m tests.benchmarks.bench_store $(OPTIONS)

bench-agent: java maven $(STAMP)  ## CPU time and memory of a node's agent, at several rates of sampling (needs a C compiler)
	@$(BIN)/python -m tests.benchmarks.bench_agent

chaos: java maven $(STAMP)  ## Break brokers, database, network and workers, and account for every record (half an hour)
	@mkdir -p build && $(BIN)/python -m tests.chaos --out build/chaos.md $(OPTIONS)

check-metamorphic: $(STAMP)  ## Recordings and 46 simulated jobs under each change that must alter no verdict (an hour)
	@mkdir -p build && $(BIN)/python -m tests.benchmarks.metamorphic --json build/metamorphic.json $(OPTIONS) | \
		tee build/metamorphic.md

bench-torch: $(STAMP)  ## What the hook adds to each operator of torch.distributed (needs the extra torch; ten minutes)
	@$(BIN)/python -W ignore -m tests.benchmarks.bench_torch_comms $(OPTIONS)

bench-analyze: $(STAMP)  ## Operators that analyze judges per CPU second; OPTIONS='DIRECTORY ...' for traces of your own
	@$(BIN)/python -m tests.benchmarks.bench_analyze $(OPTIONS)

bench-operators: $(STAMP)  ## Abnormal operators: F1, precision, recall and cost of each detector (ten minutes)
	@mkdir -p build && $(BIN)/python -m tests.benchmarks.bench_operators --json build/bench-operators.json | \
		tee build/bench-operators.md

bench-recordings: $(STAMP)  ## Accuracy on real, labelled recordings of slow NICs, links and ranks (some minutes); OPTIONS=--json
	@$(BIN)/python -m tests.benchmarks.recordings $(OPTIONS)

test-gpu:  ## Record NCCL, NVML, RAS and an Xid on a machine with one NVIDIA GPU and torch (4 minutes, root): build/gpu
	@tests/gpu/record.sh build/gpu

licences: $(STAMP)  ## The licence of each installed distribution
	@$(BIN)/python -m tests.supply_chain licences

sbom: $(STAMP)  ## build/sbom.json: a bill of materials in CycloneDX, made from the lock file
	@mkdir -p build && $(BIN)/python -m tests.supply_chain sbom >build/sbom.json && echo build/sbom.json

torch: $(STAMP)  ## Install torch, for make test-torch, make test-faults and make bench-torch (several GB)
	@$(BIN)/python -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torch") is None)' || \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check 'torch==$(TORCH_VERSION)'

size: $(STAMP)  ## Count lines, files, rooms, words and arrows that run back, beside the goals of the large clean-up
	@$(BIN)/python -m tests.size

site: $(STAMP)  ## The docs as a site: build/site
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --config-file infra/docs_site/mkdocs.yml && echo build/site

lock: python  ## Resolve requirements.lock anew from pyproject.toml
	@scratch=$$(mktemp -d); trap 'rm -rf "$$scratch"' EXIT; \
	"$(PYTHON)" -m venv "$$scratch" && "$$scratch/bin/pip" install --quiet uv==$(UV_VERSION) && \
	"$$scratch/bin/uv" pip compile pyproject.toml --extra dev --universal --python-version 3.11 --upgrade \
		--generate-hashes --no-emit-index-url --no-emit-find-links --no-annotate --quiet \
		--custom-compile-command "make lock" --output-file requirements.lock >/dev/null
	@echo "requirements.lock: $$(grep -c == requirements.lock) distributions"

clean:  ## Remove .venv, caches and what a build left
	@rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

python:
	@test -n "$(PYTHON)" || { echo "Python must be 3.11 or newer; got $$(python3 -V 2>&1 || echo none). \
	Install it, or say where it is: make PYTHON=/path/to/python" >&2; exit 2; }

java:
	@version=$$(java -version 2>&1 | sed -nE 's/.* version "([0-9]+).*/\1/p') || true; \
	test "$${version:-0}" -ge 17 || { echo "Java must be 17 or newer for the tests' Apache Kafka; got \
	$${version:-none}. Install a JDK or JRE 17 (Debian: openjdk-17-jre-headless)." >&2; exit 2; }

maven:
	@mvn --version >/dev/null 2>&1 || { echo "Maven must be installed: it fetches the tests' Apache Kafka; got none. \
	Install it (Debian: maven)." >&2; exit 2; }

# Hashes first and the project itself without dependencies: what runs is what the lock file names, and nothing else.
# The stamp comes last, so that an interrupted installation is taken up again.
$(STAMP): pyproject.toml requirements.lock irregulars/_kernel.c | python
	@echo "Installing $$(grep -c == requirements.lock) locked distributions into $(VENV) (once; a minute or two)"
	@test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV) || { rm -rf $(VENV); echo "$(PYTHON) must be able to make \
	virtual environments; it is not (Debian: install python3-venv)." >&2; exit 2; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@
