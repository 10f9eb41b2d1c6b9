# A checkout, `make` and a Python of at least 3.11 are all that these need: each target makes its
# virtual environment first, and finds it ready the next time. PYTHON=... chooses the interpreter.

DEV   := .venv
# What the demo needs and no more: the package, without test tools.
DEMO  := .venv-demo
BENCH := benchmarks/.venv
PEERS := benchmarks/.venv-peers
SERVERS := benchmarks/.venv-openenv
OLDER := .venv-older
DOCS  := .venv-docs
LOCK  := .venv-lock
# The engine that builds images, and the image that they are built on.
DOCKER := docker
BASE  := python:3.13-slim
TORCHRL := .venv-torchrl
TRL   := .venv-trl
VERIFIERS := .venv-verifiers
TRAINERS := .venv-trainers
VERL  := .venv-verl
LIBRARIES := .venv-libraries
WEB   := .venv-web
# OpenEnv's clients, each generation with its own dependencies.
COMPAT  := .venv-compat
HARNESS := ./.native-harness
OPENENV := openenv-0.10.0 openenv-0.4.1 openenv-core-0.3.0

# A target that starts sessions needs the native library too, as `VENV/.native`: the build compares
# hashes, because the times of files say little after a checkout of another commit.
.PHONY: FORCE native demo serve docs test-docs test test-native test-python test-slow test-older test-compat test-torchrl test-training test-training-fast test-web screenshots test-trl test-verifiers test-trainers test-verl learn-trl learn-torchrl test-security test-containers test-aarch64 soak soak-server check fix wheels dist wheelhouse images bench bench-server lock vendor check-vendor clean

.PHONY: test-peers test-libraries

demo: $(DEMO)/.native          ## an episode on real input, printed step by step
	$(DEMO)/bin/python examples/demo.py

serve: $(DEV)/.native          ## the endpoint on http://127.0.0.1:8000; SERVE_ARGS=... as for `repl-env serve`
	$(DEV)/bin/repl-env serve $(SERVE_ARGS)

test: $(DEV)/.native           ## the test suite, three files at a time; ARGS="tests/server -k upload", ARGS=--lf
	$(DEV)/bin/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder -q $(ARGS)

docs: $(DOCS)/.ready           ## the documentation as a site in build/site, which opens without a network or a server
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build
	@echo "open build/site/index.html"

test-docs: $(DOCS)/.native     ## the site asks nothing of another origin, in a browser too; the notebooks run
	$(DOCS)/bin/python -m tests.web.browser
	$(DOCS)/bin/python -m pytest tests/site

test-native:                   ## the native core outside Python, under the sanitizers; needs gcc or clang
	$(CC) -std=gnu11 -g -O1 -fsanitize=address,undefined -fno-sanitize-recover=all -Wall -Wextra -Werror \
		-o $(HARNESS) tests/sandbox/native/harness.c $(addprefix sandbox/repl_sandbox/native/,steps.c spawn.c snapshot.c hooked_fork.c)
	$(HARNESS); status=$$?; rm -f $(HARNESS); exit $$status

test-slow: $(DEV)/.native      ## what tests show with larger numbers: 1,000 sessions, 500 trees, longer soaks
	$(DEV)/bin/python -m pytest -m slow

test-python: $(DEV)/.native    ## CPython's own tests in a session: what fails only there is a table; minutes
	REPL_TEST_PYTHON=1 $(DEV)/bin/python -m pytest tests/cpython

test-older: $(OLDER)/.native   ## tests of models and of the hub with the older majors of openai and huggingface_hub
	$(OLDER)/bin/python -m pytest tests/repl_env/rlm tests/repl_env/llm tests/space/test_push.py

test-compat: $(DEV)/.native $(OPENENV:%=$(COMPAT)/%/.ready) ## OpenEnv's clients and checks, of three generations
	REPL_TEST_COMPAT=$(COMPAT) $(DEV)/bin/python -m pytest tests/compat
	$(COMPAT)/openenv-0.10.0/bin/python -m tests.surface --check

test-web: $(WEB)/.native       ## pages in a browser: Debian's Chromium, installed by apt as root if it is not there
	$(WEB)/bin/python -m tests.web.browser
	$(WEB)/bin/python -m pytest tests/web

screenshots: $(WEB)/.native    ## pages of real runs as pictures: build/screenshots, and those of the README in docs/images
	$(WEB)/bin/python -m tests.web.browser
	$(WEB)/bin/python -m tests.web.screenshots build/screenshots
	$(WEB)/bin/python -m tests.web.screenshots --readme
	$(WEB)/bin/python -m tests.web.playground_screenshots build/screenshots
	$(WEB)/bin/python -m tests.web.playground_screenshots --docs

test-libraries: $(LIBRARIES)/.native ## sessions with scikit-learn, LightGBM, numba, duckdb and the like, restored; 2 GB installed on the first call
	REPL_TEST_LIBRARIES=1 $(LIBRARIES)/bin/python -m pytest tests/sandbox/snapshots/test_library_pools.py tests/sandbox/jail/test_first_worker.py tests/sandbox/session/test_tables.py

test-peers: $(DEV)/.ready $(PEERS)/.ready ## the old sides of docs/migrating.md, with smolagents and rlms
	REPL_TEST_PEERS=$(PEERS)/bin/python $(DEV)/bin/python -m pytest tests/peers

test-torchrl: $(TORCHRL)/.native ## the integration of TorchRL, with a tiny model; 1.5 GB installed on the first call
	$(TORCHRL)/bin/python -m pytest tests/torchrl tests/surface

test-training: test-training-fast test-verifiers test-trainers test-verl ## all integrations of trainers but TorchRL, each in a virtual environment of its own

test-training-fast: test-trl   ## those of them that are tested with each change

test-trl: $(TRL)/.native       ## the integration of TRL, with a tiny model; 1.5 GB installed on the first call
	$(TRL)/bin/python -m pytest tests/training/trl

test-verifiers: $(VERIFIERS)/.native ## the integration of verifiers, on scripted models; 0.6 GB installed on the first call
	$(VERIFIERS)/bin/python -m pytest tests/training/verifiers

test-trainers: $(TRAINERS)/.native ## the integrations of skyrl-gym and Inspect; 0.5 GB installed on the first call
	$(TRAINERS)/bin/python -m pytest tests/training/skyrl_gym tests/training/inspect_ai

test-verl: $(VERL)/.native     ## the integration of verl; 2 GB installed on the first call
	$(VERL)/bin/python -m pytest tests/training/verl

learn-trl: $(TRL)/.native      ## a tiny model that learns with TRL, ten minutes; LEARN_ARGS="--seed 1"; exit 1 below 0.9
	$(TRL)/bin/python -m examples.learn.learn_trl $(LEARN_ARGS)

learn-torchrl: $(TORCHRL)/.native ## the same with TorchRL; likewise LEARN_ARGS
	$(TORCHRL)/bin/python -m examples.learn.learn_torchrl $(LEARN_ARGS)

test-security: $(DEV)/.native  ## the corpus of abuse, every case; CORPUS=FILE of cases, TIER=name
	$(DEV)/bin/python -m tests.security.abuse $(if $(CORPUS),--corpus $(CORPUS)) $(if $(TIER),--tier $(TIER))

test-containers: $(DEV)/.native ## containers: the tiers in them, the images, Compose; where an engine answers or can be started
	REPL_TEST_CONTAINERS=1 $(DEV)/bin/python -m pytest tests/containers

test-aarch64: $(DEV)/.native   ## tests of the engine on an emulated aarch64 machine, as root (half an hour); ARGS=... of pytest
	$(DEV)/bin/python -m tests.emulated $(ARGS)

soak: $(DEV)/.native           ## 50 sessions whose workers are ended at random, for SOAK_SECONDS=1800
	$(DEV)/bin/python -m tests.soak --seconds $(or $(SOAK_SECONDS),1800) $(SOAK_ARGS)

soak-server: $(DEV)/.native    ## a server under mixed load, clients that vanish and abuse, for SOAK_SECONDS=600
	$(DEV)/bin/python -m tests.soak.server --seconds $(or $(SOAK_SECONDS),600) $(SOAK_ARGS)

check: $(DEV)/.native          ## lint, format, types, directions of imports
	$(DEV)/bin/ruff check
	$(DEV)/bin/ruff format --check
	$(DEV)/bin/mypy
	$(DEV)/bin/lint-imports

native: $(DEV)/.native         ## the native library beside its C files, if it is not there or stale

fix: $(DEV)/.ready             ## repair what ruff can repair
	$(DEV)/bin/ruff check --fix
	$(DEV)/bin/ruff format

bench: $(BENCH)/.native $(PEERS)/.ready $(TORCHRL)/.ready   ## measure against floors and peers; BENCH_ARGS=--check to fail on a missed goal, BENCH_ARGS="--against REV" to compare two commits
	$(BENCH)/bin/python -m benchmarks --peers $(PEERS)/bin/python $(BENCH_ARGS)

bench-server: $(BENCH)/.native $(SERVERS)/.ready   ## the same of the server, beside OpenEnv's; likewise BENCH_ARGS
	$(BENCH)/bin/python -m benchmarks.server --peers $(SERVERS)/bin/python $(BENCH_ARGS)

wheels: $(DEV)/.native         ## a wheel for each machine, and one without the native library, into dist/
	$(DEV)/bin/python -m distributions.wheels

dist: $(DEV)/.native           ## sdist, wheels and constraints.txt into dist/; each wheel is installed alone, and its demo runs
	$(DEV)/bin/python -m distributions

wheelhouse: $(DEV)/.native     ## all wheels of the images into dist/wheelhouse, for the Python of BASE=python:3.13-slim
	about="$$($(DOCKER) run --rm -i --network none --entrypoint python3 $(BASE) - < distributions/about.py)" && \
		$(DEV)/bin/python -m distributions.wheelhouse dist/wheelhouse $$about

images: wheelhouse             ## images repl-env and repl-env-session, on BASE=python:3.13-slim; DOCKER=podman for another engine
	$(DOCKER) build --network none --build-arg BASE=$(BASE) --tag repl-env --file docker/Dockerfile .
	$(DOCKER) build --network none --build-arg BASE=$(BASE) --tag repl-env-session --file docker/Dockerfile.session .

lock: $(LOCK)/.ready           ## requirements.lock, docker/session.lock and their parts for Spaces anew, from the newest releases that are admitted
	$(LOCK)/bin/uv pip compile pyproject.toml --extra openai --extra hf --extra server --universal \
		--python-version 3.11 --generate-hashes --upgrade --quiet --no-config \
		--custom-compile-command 'make lock' --output-file requirements.lock
	$(LOCK)/bin/uv pip compile pyproject.toml --extra server --constraint requirements.lock --universal \
		--python-version 3.11 --generate-hashes --quiet --no-config --custom-compile-command 'make lock' \
		--output-file repl_env/integrations/space_files/requirements.lock
	$(LOCK)/bin/uv pip compile docker/session.in --constraint requirements.lock --universal \
		--python-version 3.11 --generate-hashes --upgrade --quiet --no-config \
		--custom-compile-command 'make lock' --output-file docker/session.lock
	$(LOCK)/bin/uv pip compile repl_env/integrations/space_files/session.in --constraint requirements.lock \
		--constraint docker/session.lock --universal --python-version 3.11 --generate-hashes --quiet --no-config \
		--custom-compile-command 'make lock' --output-file repl_env/integrations/space_files/session.lock

vendor: $(DEV)/.ready          ## files of pages that come from npm packages, written anew; needs npm
	$(DEV)/bin/python -m distributions.vendor --write

check-vendor: $(DEV)/.ready    ## the same files compared with their packages
	$(DEV)/bin/python -m distributions.vendor

clean:                         ## remove the virtual environments, caches and the native library
	rm -f sandbox/repl_sandbox/native/*.so
	rm -rf $(DEV) $(DEMO) $(OLDER) $(DOCS) $(LOCK) $(TORCHRL) $(TRL) $(VERIFIERS) $(TRAINERS) $(VERL) $(LIBRARIES) $(WEB) $(COMPAT) $(BENCH) $(PEERS) $(SERVERS) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .schemathesis .import_linter_cache

%/.native: %/.ready FORCE
	$*/bin/python -m repl_sandbox.native.build

# The stamp is written last: a failed or interrupted install is done again.
$(DEV)/.ready: pyproject.toml .ci/venv
	.ci/venv $(DEV) --editable '.[dev]'
	touch $@

$(DEMO)/.ready: pyproject.toml .ci/venv
	.ci/venv $(DEMO) --editable .
	touch $@

$(DOCS)/.ready: pyproject.toml .ci/venv
	.ci/venv $(DOCS) --editable '.[docs,browser]'
	touch $@

# The only libraries whose two majors must both work: other packages hold them back to the older one.
$(OLDER)/.ready: pyproject.toml .ci/venv
	.ci/venv $(OLDER) --editable '.[dev]' 'openai[aiohttp]<3' 'huggingface_hub<2'
	touch $@

# The adapter is tested in the first two; the oldest has the client alone, as its users do.
$(COMPAT)/openenv-%/.ready: pyproject.toml .ci/venv
	.ci/venv $(@D) openenv==$* --editable .
	touch $@

$(COMPAT)/openenv-core-%/.ready: .ci/venv
	.ci/venv $(@D) openenv-core==$*
	touch $@

# torch is pinned for the same reason as in the extra `dev`. matplotlib draws the curves of examples/learn.
$(TORCHRL)/.ready: pyproject.toml .ci/venv
	.ci/venv $(TORCHRL) --editable '.[torchrl]' 'torch==2.13.0' 'matplotlib>=3.8,<4' 'pytest>=8.3,<10' 'pytest-asyncio>=0.24,<2'
	touch $@

# matplotlib draws the curves of examples/learn.
$(TRL)/.ready: pyproject.toml .ci/venv
	.ci/venv $(TRL) --editable '.[trl]' 'torch==2.13.0' 'matplotlib>=3.8,<4' 'pytest>=8.3,<10' 'pytest-asyncio>=0.24,<2'
	touch $@

# The server is there for the tests of sessions on one.
$(VERIFIERS)/.ready: pyproject.toml .ci/venv
	.ci/venv $(VERIFIERS) --editable '.[verifiers,server]' 'psutil>=5.9.5,<8' 'pytest>=8.3,<10' 'pytest-asyncio>=0.24,<2'
	touch $@

# Playwright's own browsers are not downloaded: the system's Chromium is driven.
$(WEB)/.ready: pyproject.toml .ci/venv
	.ci/venv $(WEB) --editable '.[server,browser]' 'matplotlib>=3.8,<4' 'pytest>=8.3,<10' 'pytest-asyncio>=0.24,<2'
	touch $@

$(TRAINERS)/.ready: pyproject.toml .ci/venv
	.ci/venv $(TRAINERS) --editable '.[skyrl,inspect]' 'pytest>=8.3,<10' 'pytest-asyncio>=0.24,<2'
	touch $@

# Libraries with threads of their own, which the tests of `dev` do without.
$(LIBRARIES)/.ready: pyproject.toml .ci/venv
	.ci/venv $(LIBRARIES) --editable '.[dev]' scikit-learn lightgbm xgboost-cpu faiss-cpu numba duckdb pyarrow numexpr \
		blosc2 opencv-python-headless seaborn plotly datasets statsmodels
	touch $@

# verl's agent loop imports three libraries that verl does not ask for.
$(VERL)/.ready: pyproject.toml .ci/venv
	.ci/venv $(VERL) --editable '.[verl]' 'torch==2.13.0' cachetools fastapi uvicorn 'psutil>=5.9.5,<8' 'pytest>=8.3,<10' 'pytest-asyncio>=0.24,<2'
	touch $@

$(LOCK)/.ready: .ci/venv
	.ci/venv $(LOCK) 'uv>=0.9,<1'
	touch $@

$(BENCH)/.ready: pyproject.toml .ci/venv
	.ci/venv $(BENCH) --editable '.[bench]'
	touch $@

$(PEERS)/.ready: benchmarks/peers.txt .ci/venv
	.ci/venv $(PEERS) --requirement benchmarks/peers.txt
	touch $@

$(SERVERS)/.ready: benchmarks/peers-openenv.txt .ci/venv
	.ci/venv $(SERVERS) --requirement benchmarks/peers-openenv.txt
	touch $@
