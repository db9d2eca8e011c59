# demo runs the gateway, test tests it; both make their own .venv on a fresh machine.
PYTHON ?= python3
BIN := .venv/bin
# Without byte code each gateway that a test starts compiles all its modules, and each test process rewrites all asserts.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo docs screenshots chart image release lock test test-rest test-all check lint format servers bench bench-lone bench-starts bench-wide counts soak stack

help:
	@echo "make demo    run the gateway with a simulated upstream; no network, no key, no server needed"
	@echo "make docs    build the documentation site into site/"
	@echo "make screenshots  make the pictures of the documentation from the demo; needs Chromium (make servers); 2 minutes"
	@echo "make test    format, lint, strict types and the fast tests; 2 to 3 minutes on two cores, no root, no servers needed"
	@echo "make test-rest  what make test leaves out: every Redis and Valkey, real clients, browsers, kills; installs servers"
	@echo "make test-all  make test, then make test-rest; 35 minutes"
	@echo "make check   format, lint and strict types alone"
	@echo "make servers install what the slow tests run on: servers, a browser, the SDK for Node"
	@echo "make chart   copy files of deploy/ into the Helm chart, and render its golden files; needs helm (make servers)"
	@echo "make image   build the image without an engine or a registry, on Debian's Python, and ask it; needs root; 3 minutes"
	@echo "make release  build, verify and, with KEY=FILE, sign all that a release publishes into dist/release; needs helm and buildah"
	@echo "make lock    pin the versions and hashes of the image's dependencies"
	@echo "make format  put the code into shape"
	@echo "make bench   what it costs beside nginx, in 3 minutes; needs Linux, nginx and wrk"
	@echo "make bench-lone  a call at 50, 100 and 200 calls a second, beside a bare aiohttp proxy; 2 minutes"
	@echo "make bench-starts  what a start takes, beside a bare aiohttp proxy; half a minute"
	@echo "make bench-wide  as make bench-lone, one thing changed at a time: sizes, TLS, Redis, workers, keys, models; 15 minutes"
	@echo "make counts  what a call costs, counted instead of timed, in 2 minutes; more with strace and valgrind"
	@echo "make soak    five minutes of mixed load with faults; checks memory and sums; needs redis-server"
	@echo "make stack   two gateways, nginx, Redis, Prometheus and two upstreams, restarted and killed under load; a minute and a half"

.venv/.installed: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

PORT ?= 8080

# The demo needs the package alone, not what the tests need.
.venv/bin/gateway: pyproject.toml
	@echo "Installing the gateway into .venv (about 20 packages) ..."
	@$(PYTHON) -m venv .venv
	@$(BIN)/pip install --quiet --disable-pip-version-check --editable .
	@touch $@

demo: .venv/bin/gateway
	$(BIN)/gateway demo --port $(PORT)

.venv/.docs: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[docs]'
	@touch $@

docs: .venv/.docs
	$(BIN)/mkdocs build

screenshots: .venv/.installed
	$(BIN)/python -m tests.browser.screenshots

lint: .venv/.installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

check: lint
	$(BIN)/mypy

# Prints what it could not install; the tests that need it then fail with the reason.
servers: .venv/.installed
	@.ci/servers .venv/servers

# The slowest tests are printed at the end of each tier.
SLOWEST := --durations=15 --durations-min=3

# Several files at a time: forks of one process, which has collected all tests (tests/processes.py), or where a process
# must not be forked, processes that collect for themselves.
# The slow tier has its own number: most of its tests start gateways, several of them kill them.
ifeq ($(shell uname),Linux)
SEVERAL := --processes auto
SEVERAL_SLOW := --processes 3
else
SEVERAL := -n auto --dist loadfile
SEVERAL_SLOW := -n 3 --dist loadfile --no-loadscope-reorder
endif

# The fast tier: every test file that is not below a folder named `slow`. tests/test_tiers.py keeps the two apart. The
# types are checked beside it: pytest collects in one process first.
test: lint
	@failed=0; types=$$(mktemp); $(BIN)/mypy >$$types 2>&1 & mypy=$$!; \
	$(BIN)/pytest --tier fast $(SEVERAL) $(SLOWEST) || failed=1; \
	wait $$mypy || failed=1; cat $$types; rm $$types; exit $$failed

# The tests that `make test` leaves out or shortens: the fast tests of whole gateways on Redis, those of stores on the
# other Redis and Valkey, all Hypothesis examples and amounts; the slow tier; then what judges timing or memory, alone. A
# failure in one of them does not skip those behind it.
test-rest: .venv/.installed servers
	failed=0; $(BIN)/pytest --tier fast --all-redis --rest $(SEVERAL) $(SLOWEST) || failed=1; \
	$(BIN)/pytest --tier slow $(SEVERAL_SLOW) $(SLOWEST) || failed=1; \
	$(BIN)/pytest --tier alone $(SLOWEST) || failed=1; exit $$failed

# Everything. First `make test` as on a machine without the servers.
test-all:
	$(MAKE) test
	$(MAKE) test-rest

LOCK := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate
LOCKED := Written by `make lock` for all platforms, from pyproject.toml

lock: .venv/.installed
	$(BIN)/pip install --quiet --disable-pip-version-check uv
	$(LOCK) pyproject.toml --upgrade --output-file requirements.lock
	$(LOCK) pyproject.toml --upgrade --extra tokens --extra otel --extra oidc --extra brotli --extra aws --extra google --extra azure --output-file requirements-extras.lock
	$(LOCK) --group release --upgrade --output-file requirements-release.lock
	@sed -i '1i # $(LOCKED). The image installs it with --require-hashes.' requirements.lock
	@sed -i '1i # $(LOCKED) with the extras tokens, otel, oidc, brotli, aws, google and azure. The image installs it with --require-hashes.' requirements-extras.lock
	@sed -i '1i # $(LOCKED), group release. Releases are built with it; it is not in the image.' requirements-release.lock

chart: .venv/.installed
	$(BIN)/python -m tests.deploy.chart

image:
	@.ci/image

# KEY is the file with the secret key of minisign. It publishes nothing; docs/release.md has the commands that do.
release:
	@$(PYTHON) .ci/release.py $(if $(KEY),--key $(KEY)) $(if $(WITHOUT_IMAGE),--without-image)

format: .venv/.installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: .venv/.installed
	$(BIN)/python -m bench

bench-lone: .venv/.installed
	$(BIN)/python -m bench.lone

bench-starts: .venv/.installed
	$(BIN)/python -m bench.starts

bench-wide: .venv/.installed
	$(BIN)/python -m bench.wide --write

counts: .venv/.installed
	$(BIN)/python -m bench.counts

soak: .venv/.installed
	$(BIN)/python -m bench.soak

stack: .venv/.installed
	$(BIN)/python -m bench.stack
