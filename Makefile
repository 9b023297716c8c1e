# Everything a fresh machine needs is installed by the targets themselves, into .venv.
VENV ?= .venv
# Debian's Python is optimized with profiles and at link time. One that pyenv compiled is not: it may come first
# in PATH, and takes longer for everything. Debian's is taken if it can make environments and has its headers.
IS_COMPLETE := import ensurepip, pathlib, sys, sysconfig; header = pathlib.Path(sysconfig.get_path("include"), \
	"Python.h"); sys.exit(sys.version_info < (3, 11) or not header.exists())
PYTHON ?= $(shell /usr/bin/python3 -c '$(IS_COMPLETE)' 2>/dev/null && echo /usr/bin/python3 || echo python3)
BIN := $(VENV)/bin
MUTATIONS ?= 100000
MUTANTS ?= 40
TOTAL ?=
BASE ?= HEAD~1
MODULES ?=
SEED ?= 0
# Processes that run tests, for two cores. Tests wait for part of their time, end-to-end tests for much of it:
# for answers of nodes, for time limits, for disks. More processes than cores keep the cores busy.
WORKERS ?= 3
E2E_WORKERS ?= 4
STAMP := $(VENV)/.installed
DOCS := $(VENV)/.docs
# Bundles in which every setting was measured.
MEASURED := results/settings-h200 results/every-setting-2xh100
# Without bytecode files, every process that a test starts would compile our modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: quickstart test test-fast test-e2e test-sweeps lint docs lock lock-wheels lock-dry-run release gallery notebooks graph bench-accuracy bench-check bench-compare bench-cost bench-export bench-hour bench-push bench-verify counts predict-accuracy replay settings spreads fuzz mutate clean

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --editable '.[run,zero,lora,engines,push,ansible,dev]'
	# Apart, and without their dependency on torch: torchvision does not fit torch's CPU build, and transformers
	# would import it. tests/timm_on_cpu/sitecustomize.py lets tests import both.
	$(BIN)/pip install --quiet --no-deps --upgrade --target $(VENV)/timm 'timm>=1.0.29,<1.1' 'torchvision>=0.25,<0.29' 'pillow>=11,<14'
	# The first compilation on a machine makes torch prepare a header and detect the CPU's instructions.
	# If it fails here, nothing else is affected: compiled trials report the reason.
	-if command -v g++ >/dev/null; then $(BIN)/python -c 'from bench.training.methods.compile import compile_something as once; once()'; fi
	touch $@

$(DOCS): $(STAMP) pyproject.toml
	$(BIN)/pip install --quiet --editable '.[docs]'
	touch $@

quickstart: $(STAMP)  ## measure five tiny models here, verify the bundle, print the table
	rm -rf out/quickstart
	$(BIN)/bench run manifests/quickstart.json --out out/quickstart
	$(BIN)/bench verify out/quickstart/*.tar

test: $(STAMP)  ## all tests but the end-to-end ones and the sweeps
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --ignore tests/e2e -m "not e2e and not sweep"

test-fast: $(STAMP)  ## tests without those that take more than a few seconds
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --ignore tests/e2e -m "not slow and not e2e and not sweep"

test-e2e: $(STAMP) $(DOCS)  ## what takes minutes, or brings programs: cosign, a browser; the image, built and run (as root)
	# Only files with such tests are named, because each process imports all that it is given.
	$(BIN)/python -m pytest -n $(E2E_WORKERS) --dist loadfile --no-loadscope-reorder --timeout 1800 -m "e2e and not sweep" \
		$$(grep -rl --include='test_*.py' 'mark\.e2e' tests | sort)

test-sweeps: $(STAMP)  ## models, methods and devices in many combinations, compiled and trained
	$(BIN)/python -m pytest -n $(E2E_WORKERS) --dist loadfile --no-loadscope-reorder --timeout 1800 -m sweep \
		$$(grep -rl --include='test_*.py' 'mark\.sweep' tests | sort)

docs: $(DOCS)  ## the documentation as a site, in out/site; every link is checked
	$(BIN)/python -m website --out out/site

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --config-file tests/mypy.ini
	# What runs on nodes with Python 3.9; 3.10 is the oldest that mypy knows.
	$(BIN)/mypy --python-version 3.10 --follow-imports silent bench/__init__.py bench/packages bench/images/assemble.py
	PYTHONPATH=. $(BIN)/python docker/lock.py check
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/zizmor --offline --quiet .github/workflows

release: $(STAMP)  ## wheel, sdist, lists of contents, checksums, signatures, provenance: KEY=, IMAGES="a.tar b.tar", KERNELS=
	$(BIN)/python -m release --key $(KEY) $(IMAGES:%=--image %) $(KERNELS:%=--kernels %)

lock: $(STAMP)  ## lock the newest packages for the images; UV_FIND_LINKS gives the location of torch without CUDA
	$(BIN)/pip install --quiet --editable '.[lock]'
	PATH="$(BIN):$$PATH" PYTHONPATH=. $(BIN)/python docker/lock.py refresh

lock-wheels: $(STAMP)  ## write what the locked wheels contain, the last part of `make lock`; downloads those that are new
	PYTHONPATH=. $(BIN)/python docker/lock.py wheels

lock-dry-run: $(STAMP)  ## let pip resolve every lock: downloads gigabytes, installs nothing
	$(BIN)/pip install --quiet setuptools wheel packaging ninja
	PYTHON=$(abspath $(BIN))/python docker/dry-run.sh

bench-accuracy: $(STAMP)  ## compare estimates with real training, tiny models
	$(BIN)/python benchmarks/accuracy.py

# The picture of docs/prediction.md.
PREDICTED := benchmarks/data/pythia-1b.json --measured results/proof-h200/pythia-1b.tar \
	--gpu h100,8xh100,h200,8xh200,b200,8xb200,8xa100-80gb,b300,8xb300,8xmi300x

gallery: $(STAMP)  ## draw the pictures of the documents from the committed bundles
	$(BIN)/bench compare results/every-setting-h200 --plots docs/pictures
	$(BIN)/bench paper --figures docs/pictures
	$(BIN)/bench predict $(PREDICTED) --plots docs/pictures
	$(BIN)/python benchmarks/picture.py results/every-setting-h200 docs/pictures/report.png
	cd docs/pictures && rm -f run-* timeline-* figure-12* figure-13* pythia-160m-feasibility.svg

notebooks: $(STAMP)  ## run the notebooks of docs/notebooks, and write their outputs into them
	PYTHONPATH=. $(BIN)/python -m tests.library.notebooks

graph: $(STAMP)  ## draw the picture of docs/architecture.md: folders on their floors, and the imports between them
	$(BIN)/python benchmarks/graph.py docs/architecture.svg

spreads: $(STAMP)  ## fit how much days of a machine, and machines of a kind, differ: bench/data/spreads.json
	PYTHONPATH=. $(BIN)/python benchmarks/spreads.py results --write

bench-compare: $(STAMP)  ## measure time and memory of comparing many bundles, and when the report is interactive
	$(BIN)/python benchmarks/compare.py results/proof-h200/pythia-1b.tar
	$(BIN)/python benchmarks/report.py results/every-setting-h200/pythia-160m-2gpus.tar

bench-export: $(STAMP)  ## measure the step time of exported scripts, as ratios to the bundle's
	$(BIN)/python benchmarks/export.py

bench-cost: $(STAMP)  ## measure start-up and verification against their goals, as ratios to an empty Python
	rm -rf out/cost && $(BIN)/bench run manifests/quickstart.json --out out/cost
	$(BIN)/python benchmarks/cost.py out/cost/*.tar

replay: $(STAMP)  ## compare the guided search with all measured settings: regret and cost
	$(BIN)/python benchmarks/replay.py $(MEASURED)

predict-accuracy: $(STAMP)  ## hold predicted times against measured bundles and public rows (some minutes)
	PYTHONPATH=. $(BIN)/python benchmarks/prediction.py
	PYTHONPATH=. $(BIN)/python benchmarks/published.py

counts: $(STAMP)  ## count the zoo's models; writes bench/data/counts.json
	PYTHONPATH=. $(BIN)/python benchmarks/counts.py

settings: $(STAMP)  ## write docs/settings.md from the committed bundles
	$(BIN)/python benchmarks/settings.py $(MEASURED) > docs/settings.md

bench-verify: $(STAMP)  ## measure verification as bundles grow: time beyond an empty Python, and memory
	$(BIN)/python benchmarks/verify_size.py

bench-check: $(STAMP)  ## measure a passive node check, and reading a year of its history
	$(BIN)/python benchmarks/passive_check.py

bench-push: $(STAMP)  ## measure the cost of pushing over running by hand (needs root: it starts an sshd)
	$(BIN)/python benchmarks/push.py
	$(BIN)/python benchmarks/push.py --image
	PYTHONPATH=. $(BIN)/python benchmarks/hostile_push.py
	PYTHONPATH=. $(BIN)/python benchmarks/hundred_nodes.py

bench-hour: $(STAMP)  ## measure how a rented hour begins, over slow lines: an image sent or assembled, an environment (needs root)
	$(BIN)/bench image build cpu -o out/bench-hour/cpu.tar --cache out/bench-hour/bench/images
	PYTHONPATH=. $(BIN)/python benchmarks/assembled_push.py out/bench-hour/cpu.tar out/bench-hour/bench/images/wheels
	XDG_CACHE_HOME=out/bench-hour PYTHONPATH=. $(BIN)/python benchmarks/venv_push.py

fuzz: $(STAMP)  ## 100,000 damaged or forged bundles and 5,000 commands: none accepted, no defect, bounded memory
	$(BIN)/python -m tests.fuzz $(MUTATIONS) $(SEED)

mutate: $(STAMP)  ## change modules one step at a time, those that differ from BASE or MODULES=: do tests notice?
	$(BIN)/python -m benchmarks.mutate $(MODULES) --base $(BASE) $(if $(TOTAL),--total $(TOTAL),--mutants $(MUTANTS)) --seed $(SEED)

clean:
	rm -rf $(VENV) out build dist *.egg-info
