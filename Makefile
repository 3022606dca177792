# Every verb prepares what it needs: in a fresh clone `make demo` is enough.

SECONDS = 120
CHAOS = 1
HOLD = 0
KEEP = 0
MINUTES = 60
CHUNKS = 10000
ROWS = 10000000
PROFILES = sinks
P =
I =
CONFIG =
TABLE =
SINK =
DRY = 0
PYTHON =
PARTS =
QUICK = 0
LARGE_ROWS =

bench-sinks: ROWS = 500000

CODE = cdc client/watershed_client sinks spark_jobs migrations watershed tests deploy/release docs/build docs/examples
BIN = .venv/bin
CHAOTIC = $(if $(filter 0,$(CHAOS)),--no-chaos,--chaos)
PROCESSES = --numprocesses 2 --dist loadscope --no-loadscope-reorder
# Two jobs: while Spark shows what it loads, the code is checked.
MAKEFLAGS += --no-builtin-rules --no-print-directory --jobs=2
.DELETE_ON_ERROR:
.PHONY: help setup check test test-fast test-whole docs release demo snapshot prove prove-long bench bench-sinks stack up down lock helm clean

help: ## Say what the verbs are.
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' Makefile | while IFS='|' read -r verb text; do printf '%-10s %s\n' "$$verb" "$$text"; done

setup: .venv/.classes .venv/.spark .venv/.browser ## Install everything: packages, jars, Java for Spark. PYTHON=… names a Python.

check: .venv/.project ## Format, lint, types, and the repository's own rules.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy $(CODE)
	$(BIN)/pytest tests/test_imports.py tests/test_repository.py

test: setup check docs ## Check, build the documentation, then test on real servers, in two processes. CI runs it, and test-whole.
	$(BIN)/pytest $(PROCESSES) --durations-file=.watershed/durations/test.json

test-fast: .venv/.jars check ## What needs no server: units, properties, models, simulations.
	$(BIN)/pytest $(PROCESSES) -m 'not servers and not long and not whole'

test-whole: setup ## What make test leaves out: tutorials, demo, console, other PostgreSQL versions, forms of stores.
	$(BIN)/pytest $(PROCESSES) -m 'whole and not long' --durations-file=.watershed/durations/whole.json

docs: .venv/.project ## Build the documentation into .watershed/site; warnings are errors.
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict --clean

release: .venv/.project ## Build what a release consists of into dist/, from the commit. DRY=1: also with changes that are not committed.
	$(BIN)/python -m deploy.release$(if $(filter 1,$(DRY)), --dry-run)

snapshot: CHAOS = 0
snapshot: setup ## Existing rows again, or a new store's. CONFIG=… TABLE=… SINK=…; without CONFIG: a new store in the demo.
ifeq ($(CONFIG),)
	$(BIN)/cdc demo --bootstrap $(or $(SINK),warehouse) --seconds $(SECONDS) $(CHAOTIC)
else
	$(BIN)/cdc snapshot start --config $(CONFIG) $(addprefix --table ,$(TABLE)) $(addprefix --sink ,$(SINK)) \
	  $(if $(and $(SINK),$(TABLE)),--fresh)
endif

prove: setup ## List promises and invariants with their tests and the results. P=1, I=9: of one promise or invariant.
	$(BIN)/pytest $(PROCESSES) -m 'not long' --prove $(or $(P),$(addprefix I,$(I:I%=%)))

prove-long: setup ## What takes hours, each part begun again where it was: MINUTES=60 of faults, CHUNKS=10000, ROWS=10000000 in one transaction, the whole models.
	$(BIN)/python -m tests.faults.campaign --minutes $(MINUTES) --folder .watershed/campaign
	$(BIN)/python -m tests.faults.snapshot_campaign --chunks $(CHUNKS)
	$(BIN)/python -m tests.faults.hole_campaign --minutes $(MINUTES)
	$(BIN)/python -m tests.faults.schema_campaign --minutes $(MINUTES)
	$(BIN)/python -m tests.faults.toast_campaign --minutes $(MINUTES)
	$(BIN)/python -m tests.faults.large_campaign --rows $(ROWS)
	$(BIN)/python -m tests.faults.outbox_campaign --minutes $(MINUTES)
	$(BIN)/python -m tests.faults.failover_campaign --minutes $(MINUTES)
	$(BIN)/python -m tests.faults.failover_campaign --minutes 10 --cache
	$(BIN)/python -m tests.faults.mixed_campaign --minutes $(MINUTES)
	$(BIN)/python -m tests.simulation.mixed --minutes $(MINUTES)
	$(BIN)/python -m tests.faults.broker_campaign --minutes $(MINUTES)
	$(BIN)/python -m tests.simulation.operators --seeds 20000
	$(BIN)/python -m tests.faults.operator_campaign --minutes $(MINUTES)
	$(BIN)/python -m tests.faults.sink_campaign --minutes $(MINUTES)
	$(BIN)/python -m tests.faults.warehouse_campaign --minutes $(MINUTES)
	$(BIN)/python -m tests.faults.bank_campaign --minutes $(MINUTES)
	$(BIN)/python -m tests.faults.drift_campaign --minutes $(MINUTES)
	$(BIN)/python -m tests.faults.wild_campaign --minutes $(MINUTES)
	$(BIN)/python -m tests.faults.rebuild_campaign
	$(BIN)/python -m tests.faults.rebuild_campaign --rows 20000 --kills 3 --sinks search cache sql warehouse
	$(BIN)/python -m tests.faults.takeover_campaign
	$(BIN)/python -m tests.faults.readiness_campaign
	$(BIN)/python -m tests.faults.wait_campaign
	$(BIN)/python -m tests.faults.view_campaign --minutes $(MINUTES)
	$(BIN)/python -m tests.faults.view_query_campaign --minutes $(MINUTES)
	$(BIN)/python -m tests.faults.view_kill_campaign --minutes $(MINUTES)
	$(BIN)/pytest -m long
	$(BIN)/python -m tests.models --whole
	$(BIN)/python -m tests.fuzz --minutes $(MINUTES)

bench: setup ## Capture and Debezium side by side, an hour: docs/benchmarks. PARTS='catchup latency' QUICK=0|1 LARGE_ROWS=5000000
	$(BIN)/python -m tests.bench.public $(PARTS)$(if $(filter 1,$(QUICK)), --quick)$(if $(LARGE_ROWS), --large-rows $(LARGE_ROWS))

bench-sinks: setup ## Rows per second and freshness of each sink, beside its store's plain client. ROWS=500000
	$(BIN)/python -m tests.bench.sinks --rows $(ROWS)

demo: setup ## The whole path with kill -9 in the middle, then compare every row. SECONDS=120 CHAOS=0|1 HOLD=0 KEEP=0|1 VIEWS=0|1
	$(BIN)/cdc demo --seconds $(SECONDS) --hold $(HOLD) $(CHAOTIC)$(if $(filter 1,$(KEEP)), --keep)$(if $(filter 1,$(VIEWS)), --views)

stack: setup ## Start PostgreSQL, Kafka, OpenSearch and Redis natively, and leave them running.
	$(BIN)/cdc stack up

up: deploy/docker/secrets ## The same servers with capture and sinks, in Docker. PROFILES='sinks demo monitoring'
	@docker compose version >/dev/null 2>&1 || { echo 'make up needs Docker with its compose plugin; make demo and make stack do without'; exit 1; }
	docker compose $(addprefix --profile ,$(PROFILES)) up --detach --build --wait

down: ## Stop what stack and up started. Data stays.
	@if [ -x $(BIN)/cdc ]; then $(BIN)/cdc stack down; fi
	@if [ -d deploy/docker/secrets ] && docker compose version >/dev/null 2>&1 && docker info >/dev/null 2>&1; then docker compose --profile '*' down; fi

# Only this user enters the folder. Its files are readable, because containers read them as users of their own.
deploy/docker/secrets:
	@mkdir -m 700 $@.new
	@password=$$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n'); umask 022; \
	printf '%s' "$$password" >$@.new/postgres_password; \
	printf 'postgresql://watershed:%s@postgres:5432/watershed' "$$password" >$@.new/CDC__SOURCE__DSN; \
	printf 'postgresql://watershed:%s@postgres:5432/reports' "$$password" >$@.new/CDC__SINKS__SQL__URL; \
	od -An -N16 -tx1 /dev/urandom | tr -d ' \n' >$@.new/grafana_password
	@mv $@.new $@

lock: .venv/.packages ## Make the lock files again from pyproject.toml; versions that still fit stay.
	$(LOCK) --all-extras --output-file requirements.lock
	$(LOCK) --constraint requirements.lock --extra=registry --extra=msk --extra=oidc --extra=telemetry --output-file deploy/docker/capture.lock
	$(LOCK) --constraint requirements.lock $(addprefix --extra=,search aws cache spark warehouse sql views registry msk oidc telemetry) --output-file deploy/docker/sinks.lock

helm: ## Build helm with Go into .venv/bin, for the tests of the chart.
	GOBIN=$(abspath $(BIN)) go install helm.sh/helm/v3/cmd/helm@v3.22.0

clean: ## Back to a fresh clone. The cache of jars, which clones share, stays.
	@if [ -x $(BIN)/cdc ]; then $(BIN)/cdc stack down --erase; fi
	rm -rf .venv .watershed .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist *.egg-info
	find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +

# What is installed, each step remembered by a stamp in .venv: a second setup does nothing, a changed lock installs again.

CANDIDATES = $(or $(PYTHON),python3.11 python3.12 python3.13 python3)
LOCK = UV_CUSTOM_COMPILE_COMMAND='make lock' $(BIN)/uv pip compile --quiet pyproject.toml --generate-hashes --universal \
	--python-version 3.11 --no-emit-index-url
# uv trusts the certificates that the system trusts, and reads from the index that pip is configured for.
export UV_SYSTEM_CERTS = 1
UV = @index=$${UV_DEFAULT_INDEX:-$$($(BIN)/pip config list | sed -n "s/^[^ ]*[.]index-url='\(.*\)'$$/\1/p" | tail -n 1)}; \
	$${index:+env UV_DEFAULT_INDEX="$$index"} $(BIN)/uv pip

$(BIN)/python:
	@for python in $(CANDIDATES); do \
	  if "$$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    echo "$$("$$python" --version) in .venv"; exec "$$python" -m venv --clear .venv; \
	  fi; \
	done; \
	echo 'There is no Python 3.11 or newer with its venv module (tried: $(CANDIDATES)).' >&2; \
	echo '  next: install one (Debian, Ubuntu: apt-get install python3 python3-venv),' \
	  'or name it: make setup PYTHON=/path/to/python3' >&2; \
	exit 1

# pip, which is in every venv, installs uv; uv installs the rest: 16 s instead of 115 s. Hashes are demanded of both.
# PySpark comes as source: its wheel is only unpacked again, so its 430 MB of jars are not worth compressing.
# Bytecode is written now: where PYTHONDONTWRITEBYTECODE is set, each process would compile what it imports, in 0.6 s.
.venv/.packages: requirements.lock | $(BIN)/python
	@awk '/^(setuptools|uv)==/ { wanted = 1 } wanted { print } !/\\$$/ { wanted = 0 }' requirements.lock >.venv/first.txt
	$(BIN)/pip install --quiet --no-deps --require-hashes --requirement .venv/first.txt
	@echo 'installing requirements.lock'
	$(UV) sync --compile-bytecode --require-hashes --no-build-isolation \
	  --config-settings-package pyspark:--build-option=--compression=stored requirements.lock
	@touch $@

# `compat` puts the repository's folder on the path, so that tests and docs can be imported too.
.venv/.project: pyproject.toml .venv/.packages
	$(UV) install --quiet --no-deps --no-build-isolation --config-settings editable_mode=compat --editable .
	@$(BIN)/python -m compileall -q cdc client/watershed_client sinks spark_jobs migrations watershed tests
	@touch $@

.venv/.jars: spark_jobs/jars/lock.json .venv/.project
	$(BIN)/python -m spark_jobs.jars
	@touch $@

# Kafka and OpenSearch start in half the time from a cache of their loaded classes, made once for each machine.
.venv/.classes: .venv/.jars
	$(BIN)/python -m watershed.devstack.startup_recorder
	@touch $@

.venv/.java: .venv/.project
	$(BIN)/python -m watershed.devstack.java --install
	@touch $@

# The console's tests need a browser. Where none can be had, this says so, and they are skipped.
.venv/.browser: .venv/.project tests/support/browser.py
	@$(BIN)/python -m tests.support.browser
	@touch $@

# A Spark job starts with half the processor time from such an archive, which fits this environment's jars alone.
.venv/.spark: .venv/.jars .venv/.java
	$(BIN)/python -m spark_jobs.archive_maker
	@touch $@
