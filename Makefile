# A checkout, `make` and a Python of at least 3.11 are all that these need: each target makes its
# virtual environment first, and finds it ready the next time. PYTHON=... chooses the interpreter.

DEV   := .venv
BENCH := benchmarks/.venv
PEERS := benchmarks/.venv-peers
OLDER := .venv-older

.PHONY: demo test test-slow test-older test-security test-containers soak check fix bench clean

demo: $(DEV)/.ready            ## an episode on real input, printed step by step
	$(DEV)/bin/python examples/demo.py

test: $(DEV)/.ready            ## the test suite
	$(DEV)/bin/python -m pytest

test-slow: $(DEV)/.ready       ## what tests show with larger numbers: 1,000 sessions, 500 trees, longer soaks
	$(DEV)/bin/python -m pytest -m slow

test-older: $(OLDER)/.ready    ## tests of models with the older majors of openai and huggingface_hub
	$(OLDER)/bin/python -m pytest tests/rlm

test-security: $(DEV)/.ready   ## the corpus of abuse, every case; CORPUS=FILE of cases, TIER=name
	$(DEV)/bin/python -m tests.security.abuse $(if $(CORPUS),--corpus $(CORPUS)) $(if $(TIER),--tier $(TIER))

test-containers: $(DEV)/.ready ## tier confined in containers, where an engine answers or can be started
	REPL_TEST_CONTAINERS=1 $(DEV)/bin/python -m pytest tests/containers

soak: $(DEV)/.ready            ## 50 sessions whose workers are ended at random, for SOAK_SECONDS=1800
	$(DEV)/bin/python -m tests.soak --seconds $(or $(SOAK_SECONDS),1800) $(SOAK_ARGS)

check: $(DEV)/.ready           ## lint, format, types, directions of imports
	$(DEV)/bin/ruff check
	$(DEV)/bin/ruff format --check
	$(DEV)/bin/mypy
	$(DEV)/bin/lint-imports

fix: $(DEV)/.ready             ## repair what ruff can repair
	$(DEV)/bin/ruff check --fix
	$(DEV)/bin/ruff format

bench: $(BENCH)/.ready $(PEERS)/.ready   ## measure against floors and peers; BENCH_ARGS=--check to fail on a missed goal
	$(BENCH)/bin/python -m benchmarks --peers $(PEERS)/bin/python $(BENCH_ARGS)

clean:                         ## remove the virtual environments and caches
	rm -rf $(DEV) $(OLDER) $(BENCH) $(PEERS) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

# The stamp is written last: a failed or interrupted install is done again.
$(DEV)/.ready: pyproject.toml .ci/venv
	.ci/venv $(DEV) --editable '.[dev]'
	touch $@

# The only libraries whose two majors must both work: other packages hold them back to the older one.
$(OLDER)/.ready: pyproject.toml .ci/venv
	.ci/venv $(OLDER) --editable '.[dev]' 'openai[aiohttp]<3' 'huggingface_hub<2'
	touch $@

$(BENCH)/.ready: pyproject.toml .ci/venv
	.ci/venv $(BENCH) --editable '.[bench]'
	touch $@

$(PEERS)/.ready: benchmarks/peers.txt .ci/venv
	.ci/venv $(PEERS) --requirement benchmarks/peers.txt
	touch $@
