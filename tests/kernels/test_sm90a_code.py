"""What ptxas says of the Hopper kernels: nothing spilled, and no products serialised.

wgmma runs beside other code only while ptxas can prove that nothing touches its registers; where it cannot, it serialises
them, says so in a note (C7510 to C7519), and the kernel loses a third of its speed. No compiler flag makes that an error.
"""

import concurrent.futures
import os
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ["ATTND_BUILD_DIR"])


def kernels():
    """One dtype: both give the same code but for the type in the products."""
    return sorted((BUILD / "kernels" / "cuda").glob("attn_fwd_bf16_*_sm90a_*.cu"))


def nvcc():
    cache = (BUILD / "CMakeCache.txt").read_text()
    return re.search(r"^CMAKE_CUDA_COMPILER:\w+=(.*)$", cache, re.MULTILINE).group(1)


def assemble(source):
    command = [nvcc(), "-std=c++17", "-O3", f"-I{ROOT}", "-gencode", "arch=compute_90a,code=sm_90a", "-Xptxas", "-v",
               "-cubin", "-o", os.devnull, str(source)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return done.returncode, done.stdout


@pytest.fixture(scope="module")
def notes():
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return dict(zip((k.stem for k in kernels()), pool.map(assemble, kernels())))


def test_there_are_kernels():
    assert kernels()


@pytest.mark.parametrize("kernel", [k.stem for k in kernels()])
def test_nothing_is_spilled_or_serialised(notes, kernel):
    status, text = notes[kernel]
    assert status == 0, text
    assert not re.search(r"\(C75\d\d\)", text), text
    assert re.search(r"\b0 bytes spill stores, 0 bytes spill loads", text), text
