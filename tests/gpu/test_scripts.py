"""run.sh, sass.sh and delays.sh without a GPU: what they make of programs that pass, fail, hang or are not there."""

import os
import pathlib
import shutil
import subprocess

import pytest

HERE = pathlib.Path(__file__).resolve().parent
SCRIPTS = ("run.sh", "sass.sh", "delays.sh")
KERNEL = "attn_fwd_bf16_d128_full_sm90a_q128k160"


def write_program(path, body):
    path.parent.mkdir(exist_ok=True)
    path.write_text("#!/usr/bin/env bash\n" + body + "\n")
    path.chmod(0o755)


@pytest.fixture
def bundle(tmp_path):
    """A bundle whose programs all pass at once, on a machine with one H200 and no cuobjdump."""
    (tmp_path / "gpu").mkdir()
    for script in SCRIPTS:
        shutil.copy(HERE / script, tmp_path / "gpu")
    for test in ("conformance", "invariance", "dynamic_range", "public_failures", "registry", "cuda_device_gpu",
                 "cuda_devices_gpu", "cuda_regions_gpu", "cuda_ipc_gpu"):
        write_program(tmp_path / "tests" / f"{test}_test", "echo fine")
    write_program(tmp_path / "tests" / "planted_race", "[ $1 = none ] || [ $1 = ring ] || exit 9")
    for bench in ("kernel_bench", "batching_bench"):
        write_program(tmp_path / "bin" / bench, "echo a table")
    for script in ("demo", "soak", "transports"):
        write_program(tmp_path / "gpu" / f"{script}.sh", "echo fine")
    write_program(tmp_path / "machine" / "nvidia-smi",
                  'case "$*" in *--list-gpus*) echo GPU 0 ;; *compute_cap*) echo 9.0 ;; *) echo NVIDIA H200 ;; esac')
    write_program(tmp_path / "machine" / "compute-sanitizer", 'until [ -x "$1" ]; do shift; done; exec "$@"')
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libattnd_kernels.so").touch()
    (tmp_path / "lib_delays").mkdir()
    return tmp_path


def call(bundle, script, *arguments):
    path = f"{bundle / 'machine'}:/usr/bin:/bin"
    return subprocess.run([bundle / "gpu" / script, *arguments], capture_output=True, text=True, timeout=60,
                          env={"PATH": path, "TMPDIR": str(bundle)})


def outcomes(result):
    """Line -> outcome, from the table at the end."""
    table = result.stdout.rsplit("\n\n", 1)[-1].splitlines()[:-1]
    return {line[:20].strip(): line[21:].rsplit(maxsplit=2)[0].strip() for line in table}


def code_of(*instructions, kernel=KERNEL):
    lines = [f"\t\tFunction : {kernel}"] + [f"        /*{16 * i:04x}*/  {text} ;" for i, text in enumerate(instructions)]
    code = "cat <<'END'\n" + "\n".join(lines) + "\nEND"
    return f'if [ "$1" = --extract-elf ]; then echo {kernel} >library.1.cubin; exit; fi\n{code}'


def test_everything_runs_and_passes(bundle):
    result = call(bundle, "run.sh")
    assert result.returncode == 0, result.stdout + result.stderr
    lines = outcomes(result)
    skipped = {name for name, outcome in lines.items() if outcome.startswith("skipped")}
    assert skipped == {"two_gpus", "sass", "delays"}
    assert lines["sass"] == "skipped: no cuobjdump here"
    assert all(outcome == "passed" for name, outcome in lines.items() if name not in skipped)
    for tool in ("memcheck", "initcheck", "synccheck", "racecheck"):
        assert {f"{tool}_generic", f"{tool}_sm90a"} <= set(lines)
    assert {"dynamic_range", "batching"} <= set(lines)


def test_names_choose_lines_and_an_unknown_one_is_an_error(bundle):
    result = call(bundle, "run.sh", "racecheck_sm90a", "registry")
    assert result.returncode == 0
    assert set(outcomes(result)) == {"racecheck_sm90a", "registry"}
    result = call(bundle, "run.sh", "registry", "no_such_line")
    assert result.returncode == 1
    assert "no_such_line" in result.stderr


def test_a_failure_is_shown_and_the_rest_still_runs(bundle):
    write_program(bundle / "tests" / "registry_test", "echo 'what went wrong'; exit 3")
    result = call(bundle, "run.sh", "--quick")
    assert result.returncode == 1
    assert outcomes(result)["registry"] == "FAILED (3)"
    assert outcomes(result)["soak"] == "passed"
    assert "memcheck_sm90a" not in outcomes(result)
    assert "what went wrong" in result.stdout


@pytest.mark.parametrize("output", ["[==========] Running 0 tests from 0 test suites.", "[  SKIPPED ] It.Needs.More"])
def test_what_did_not_run_has_not_passed(bundle, output):
    write_program(bundle / "tests" / "registry_test", f"echo '{output}'")
    result = call(bundle, "run.sh", "registry")
    assert result.returncode == 1
    assert outcomes(result)["registry"] == "FAILED (not all ran)"


def test_a_line_that_hangs_is_the_last(bundle):
    write_program(bundle / "tests" / "dynamic_range_test", "sleep 50 & wait")
    result = call(bundle, "run.sh", "--limit_s=1")
    assert result.returncode == 1
    lines = outcomes(result)
    assert list(lines) == ["conformance", "invariance", "dynamic_range"]
    assert lines["dynamic_range"] == "FAILED (over 1 s)"


@pytest.mark.parametrize(
    "instructions, good",
    [
        (["HGMMA.64x160x16.F32.BF16 R24, gdesc[UR4]", "@P0 UTMALDG.4D [UR8], [UR6]", "LDS R1, [R2]"], True),
        (["HGMMA.64x160x16.F32.BF16 R24, gdesc[UR4]", "LDG.E R1, [R2]"], False),
        (["UTMALDG.4D [UR8], [UR6]", "HMMA.16816.F32 R4, R8, R12, R4"], False),
        (["HGMMA.64x8x16.F32 R24, gdesc[UR4]", "UTMALDG.4D [UR8], [UR6]", "@!P0 STL.64 [R1], R2"], False),
        (["HGMMA.64x8x16.F32 R24, gdesc[UR4]", "UTMALDG.4D [UR8], [UR6]", "LDL R2, [R1+0x4]"], False),
    ],
)
def test_sass_wants_the_matrix_unit_the_copy_engine_and_no_spills(bundle, instructions, good):
    write_program(bundle / "machine" / "cuobjdump", code_of(*instructions))
    result = call(bundle, "sass.sh", "library")
    assert KERNEL in result.stdout
    assert (result.returncode == 0) == good
    assert ("WRONG" in result.stdout) != good


def test_sass_of_a_library_without_hopper_kernels_is_wrong(bundle):
    write_program(bundle / "machine" / "cuobjdump", code_of("HMMA R1, R2", kernel="attn_fwd_f16_d64_full_generic"))
    result = call(bundle, "sass.sh", "library")
    assert result.returncode == 1
    assert result.stdout == "in all: 0 kernels, 0 wrong\n"


@pytest.fixture
def two_builds(bundle):
    """delays.sh's two folders; python3 prints what the build's folder has as `bits`."""
    for folder, bits in (("lib", "1"), ("lib_delays", "1")):
        (bundle / folder).mkdir(exist_ok=True)
        (bundle / folder / "libattnd_kernels_c.so").touch()
        (bundle / folder / "bits").write_text(f"a problem {bits}\n")
    # The code of a library of lib_delays alone can sleep.
    write_program(bundle / "machine" / "cuobjdump", '''
if [ "$1" = --extract-elf ]; then
  case "$3" in *lib_delays*) echo _sm90a >with.cubin ;; *) echo _sm90a >without.cubin ;; esac
else
  case "$2" in */with.cubin) echo "  NANOSLEEP R1 ;" ;; esac
fi''')
    write_program(bundle / "machine" / "python3", '[ "$1" = -c ] || cat "$(dirname "$2")/bits"')
    return bundle


def delays(bundle):
    return call(bundle, "delays.sh", bundle / "lib", bundle / "lib_delays")


def test_delays_passes_on_the_same_bits(two_builds):
    result = delays(two_builds)
    assert result.returncode == 0
    assert result.stdout == "1 problems, the same bits; 1 places to sleep\n"


def test_delays_fails_on_other_bits(two_builds):
    (two_builds / "lib_delays" / "bits").write_text("a problem 2\n")
    result = delays(two_builds)
    assert result.returncode == 1
    assert "> a problem 2" in result.stdout


def test_delays_fails_where_nothing_is_delayed(two_builds):
    write_program(two_builds / "machine" / "cuobjdump", "echo nothing")
    result = delays(two_builds)
    assert result.returncode == 1
    assert "NANOSLEEP is 0 times" in result.stderr


def test_delays_says_what_is_missing(two_builds):
    os.remove(two_builds / "lib_delays" / "libattnd_kernels_c.so")
    result = delays(two_builds)
    assert (result.returncode, result.stdout) == (77, "no build with delays\n")
