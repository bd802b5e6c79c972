"""No code that was built for a newer instruction set can be reached without asking for it.

The linker keeps one copy of every inline function. If a unit built for AVX-512 held one, that copy might
serve the whole program, which would then die on an older processor: so those units may define one symbol
each and no weak one, and everything else of the library may hold no AVX instruction.
"""

import os
import pathlib
import re
import subprocess

import pytest

OBJECTS = pathlib.Path(os.environ["ATTND_BUILD_DIR"]) / "kernels" / "CMakeFiles" / "attnd_kernels.dir"
TABLES = {
    "decode_avx512": "kDecodeAvx512",
    "decode_avx2": "kDecodeAvx2",
    "decode_portable": "kDecodePortable",
    "flash_amx": "kFlashAmx",
    "flash_avx512": "kFlashAvx512",
    "flash_avx512_bf16": "kFlashAvx512BF16",
    "flash_avx2": "kFlashAvx2",
    "flash_portable": "kFlashPortable",
}
BASELINE_TABLES = ["decode_portable", "flash_portable"]
AVX512_TABLES = ["decode_avx512", "flash_amx", "flash_avx512", "flash_avx512_bf16"]


def objects():
    found = sorted(OBJECTS.rglob("*.o"))
    assert len(found) >= 8, f"no objects of attnd_kernels under {OBJECTS}"
    return found


def stem(path):
    return path.name.split(".")[0]


ISA_OBJECTS = [path for path in objects() if stem(path) in TABLES]
BASELINE_OBJECTS = [path for path in objects() if stem(path) not in TABLES or stem(path) in BASELINE_TABLES]


def disassemble(path):
    return subprocess.run(["objdump", "-d", "--no-show-raw-insn", path], check=True, capture_output=True,
                          text=True).stdout


@pytest.mark.parametrize("path", ISA_OBJECTS, ids=stem)
def test_kernel_units_define_their_table_alone(path):
    lines = subprocess.run(["nm", "-C", "--defined-only", path], check=True, capture_output=True,
                           text=True).stdout.splitlines()
    shown = []
    for line in lines:
        _, kind, name = line.split(maxsplit=2)
        # Lower case is local; but w, v and u are kinds of sharing.
        if kind.isupper() or kind in "wvu":
            shown.append((kind, name))
    assert [name for _, name in shown] == [f"attnd::kernels::cpu::{TABLES[stem(path)]}"]
    assert shown[0][0] in "RD", "data that is not shared"


@pytest.mark.parametrize("path", BASELINE_OBJECTS, ids=stem)
def test_baseline_units_hold_no_avx(path):
    found = re.search(r".*%([yz]mm|tmm).*", disassemble(path))
    assert found is None, found.group()


# The check above can fail: the registers are there where they belong.
@pytest.mark.parametrize("path", [path for path in ISA_OBJECTS if stem(path) not in BASELINE_TABLES], ids=stem)
def test_kernels_use_their_own_registers(path):
    text = disassemble(path)
    assert "%ymm" in text
    assert ("%zmm" in text) == (stem(path) in AVX512_TABLES)
    assert ("tdpbf16ps" in text) == (stem(path) == "flash_amx")
    assert ("vdpbf16ps" in text) == (stem(path) == "flash_avx512_bf16")
