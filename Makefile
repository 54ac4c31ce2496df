# Each target is one plain command. `make` alone prints the list.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready-for-checkback
# The extras that the lock covers.
EXTRAS := sql http spark airflow page rocksdb telemetry fast dev docs
# Those of the image: no tools for tests.
IMAGE := sql http spark airflow page rocksdb telemetry fast
GOLDEN := build/golden
# What `make another` tests with: a name of a Python, a path of one or a version; and which tests, all if none are named.
ANOTHER ?= python3.14
TESTS ?=
# Whose clusters the suites of producers and consumers run over in `make compat`; also "4.9.7 5.5.0".
ROCKETMQ ?= 5.3.3
# Many tests wait for the disk or for another process: three for each processor.
WORKERS := $(shell $(PYTHON) -c 'import os; print(min(8, 3 * (os.cpu_count() or 1)))')

# With it set, each of a thousand processes of the tests compiles the project again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup run judge docs test lint format airflow-matrix compat torture wheel wheels bench oldest another lock clean

help: ## Print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## Make .venv with exactly what requirements.lock says, and this project in it

# An environment is tied to its directory and its interpreter: one that came with a copied tree is made again.
# It is made ready again, too, when its C module was removed since: `git clean` would leave the Python alone, without a word.
ifneq ($(shell test -x $(BIN)/python && cat $(READY) 2>/dev/null)$(shell test -e .venv/has-fast && ! ls broker/_fast*.so >/dev/null 2>&1 && echo lost),$(CURDIR))
.PHONY: $(READY)
endif

# uv itself comes from the lock too, with its hash; the build backend is in the lock, so nothing is fetched unpinned.
$(READY): requirements.lock pyproject.toml setup.py $(wildcard broker/_fast*.c broker/_fast*.h) broker/store/shared/control.py broker/store/shared/queue_offsets.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "checkback needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	@test -x $(BIN)/python && test "$$(cat $@ 2>/dev/null)" = "$(CURDIR)" || $(PYTHON) -m venv --clear .venv
	@awk '/^[a-z]/ { on = /^uv==/ } on' requirements.lock > .venv/uv.lock
	@$(BIN)/python -m pip install --quiet --no-deps --require-hashes -r .venv/uv.lock
	$(BIN)/uv pip sync --quiet --compile-bytecode --python $(BIN)/python requirements.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@$(BIN)/python -m broker.compiled
	@if ls broker/_fast*.so >/dev/null 2>&1; then touch .venv/has-fast; else rm -f .venv/has-fast; fi
	@echo "$(CURDIR)" > $@

run: setup ## Airflow with the recovery service, a flash sale that is killed at random, and its reconciliation
	$(BIN)/checkback up --demo --home build/up

judge: setup ## Verify the stores in tests/golden, which real RocketMQ brokers wrote
	@$(BIN)/python tests/golden/unpack.py $(GOLDEN)
	@for store in $(GOLDEN)/*/; do \
		echo; echo "$$ checkback verify --limit 2 $${store%/}"; \
		$(BIN)/python -m recovery.cli verify --limit 2 "$${store%/}" || test $$? -eq 1 || exit 1; \
	done

docs: setup ## Build the documentation site in build/site, warnings as errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "build/site/index.html"

test: lint ## Lint, then run every test that needs nothing but Python
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadgroup

lint: setup ## Check style, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy || $(BIN)/mypy --num-workers 0 # its workers do not answer in time on a busy machine

format: setup ## Put the code in form
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

airflow-matrix: setup ## Run the core of tests/airflow with the Airflows of tests/compat/airflow_matrix.py
	$(BIN)/python -m tests.compat.airflow_matrix

compat: setup ## Compare with real RocketMQ brokers (Java 17, Maven)
	$(BIN)/python -m pytest tests/compat
	CHECKBACK_BACKENDS="$(ROCKETMQ)" $(BIN)/python -m pytest -m each_backend tests/backends tests/producer tests/ledger tests/checkback tests/consumer tests/cluster

torture: setup ## Flip every bit, cut at every byte, kill at every step (hours)
	$(BIN)/python -m pytest tests/torture
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadgroup -m torture
	CHECKBACK_PURE=1 $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadgroup tests/store tests/transaction tests/consumer

wheel: setup ## Build a wheel for this platform, with the C module, in dist/
	@rm -rf build/lib* build/bdist* build/temp*
	$(BIN)/uv build --quiet --wheel --no-build-isolation --python $(BIN)/python --out-dir dist .
	@$(BIN)/python -m zipfile --list dist/*.whl | grep 'broker/_fast.abi3' >/dev/null || { echo "the wheel has no C module: a C compiler and the headers of Python are needed" >&2; exit 1; }
	@ls dist/*.whl

# The compiler of Zig has the system's headers and libraries of each target; the limited API is the same for all of them.
wheels: setup ## Build wheels with the C module for Linux (glibc 2.28) on x86_64 and on 64-bit ARM, in dist/
	@test -x build/zig/bin/python || $(PYTHON) -m venv build/zig
	@build/zig/bin/python -m pip install --quiet --require-hashes -r wheels.lock
	@for machine in x86_64 aarch64; do \
		rm -rf build/lib* build/bdist* build/temp*; \
		cc="build/zig/bin/python -m ziglang cc -target $$machine-linux-gnu.2.28"; \
		CC="$$cc" LDSHARED="$$cc -shared -s" _PYTHON_HOST_PLATFORM="linux-$$machine" $(BIN)/uv build --quiet --wheel \
			--no-build-isolation --python $(BIN)/python --out-dir dist \
			--config-setting=--build-option=--plat-name=manylinux_2_28_$$machine . || exit 1; \
		$(BIN)/python -m zipfile --list dist/*manylinux_2_28_$$machine.whl | grep 'broker/_fast.abi3.so' >/dev/null || { echo "the wheel for $$machine has no C module" >&2; exit 1; }; \
	done
	@rm -rf build/lib* build/bdist* build/temp*
	@ls dist/*manylinux*.whl

bench: setup ## Measure speed and memory: the figures in the README
	$(BIN)/python -m tests.bench.starting
	$(BIN)/python -m tests.bench.run
	$(BIN)/python -m tests.bench.write
	$(BIN)/python -m tests.bench.transactions
	$(BIN)/python -m tests.bench.consuming
	$(BIN)/python -m tests.bench.queues
	$(BIN)/python -m tests.bench.following
	$(BIN)/python -m tests.bench.waking
	$(BIN)/python -m tests.bench.serving
	$(BIN)/python -m tests.bench.spark
	$(BIN)/python -m tests.bench.comparison

oldest: setup ## Run the tests with the oldest dependencies that pyproject.toml allows
	@mkdir -p build
	$(BIN)/uv pip compile --quiet --resolution lowest-direct $(EXTRAS:%=--extra %) pyproject.toml -o build/oldest.txt
	$(BIN)/uv venv --quiet --clear build/oldest
	$(BIN)/uv pip sync --quiet --compile-bytecode --python build/oldest build/oldest.txt
	build/oldest/bin/python -m pytest

another: setup ## Run the tests with another Python, as with ANOTHER=python3.13 TESTS="tests/store tests/app"
	@mkdir -p build
	$(BIN)/uv venv --quiet --clear --python $(ANOTHER) build/another
	$(BIN)/uv pip sync --quiet --compile-bytecode --python build/another requirements.lock
	$(BIN)/uv pip install --quiet --python build/another --no-deps --no-build-isolation --editable .
	@build/another/bin/python -m broker.compiled
	build/another/bin/python -m pytest --numprocesses $(WORKERS) --dist loadgroup $(TESTS)

lock: setup ## Write requirements.lock, constraints.txt and docker/requirements.lock again, with the newest versions
	@mkdir -p build
	$(BIN)/uv pip compile --quiet --universal --upgrade --no-header --no-annotate --generate-hashes \
		$(EXTRAS:%=--extra %) pyproject.toml -o requirements.lock
	$(BIN)/uv pip compile --quiet --universal --upgrade --no-header --no-annotate --constraint requirements.lock \
		$(EXTRAS:%=--extra %) pyproject.toml -o constraints.txt
	printf 'ziglang\n' > build/wheels.in
	$(BIN)/uv pip compile --quiet --universal --no-header --no-annotate --generate-hashes build/wheels.in -o wheels.lock
	printf 'psycopg[binary]\nsetuptools==84.2.1\n' > build/image.in
	$(BIN)/uv pip compile --quiet --universal --no-header --no-annotate --generate-hashes \
		--constraint requirements.lock $(IMAGE:%=--extra %) pyproject.toml build/image.in -o docker/requirements.lock

clean: ## Remove what this Makefile made
	rm -rf .venv build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
