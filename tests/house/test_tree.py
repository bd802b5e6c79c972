"""Rules of the tree that a compiler does not see."""

import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def tracked(*suffixes):
    """Files of the tree, as git has them; the same by walking where there is no git (a release's tarball)."""
    try:
        out = subprocess.run(["git", "-C", str(ROOT), "ls-files"], check=True, capture_output=True, text=True)
        names = out.stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        names = [p.relative_to(ROOT).as_posix() for p in ROOT.rglob("*") if p.is_file() and "build" not in p.parts]
    return [n for n in names if n.endswith(suffixes) and (ROOT / n).exists()]


def test_every_folder_has_a_readme():
    for folder in ("proto", "kernels", "server", "client", "tests", "deploy", "tests/data", "tests/e2e", "tests/fuzz",
                   "tests/bench"):
        readme = ROOT / folder / "README.md"
        assert readme.is_file() and readme.stat().st_size > 200, f"{folder}/ has no README.md that says anything"


@pytest.mark.parametrize("name", tracked(".h", ".cc", ".cu", ".cuh", ".py"))
def test_file_has_one_job(name):
    lines = (ROOT / name).read_text().count("\n")
    assert lines <= 500, f"{name} has {lines} lines; split it at 500"


@pytest.mark.parametrize("name", tracked(".h"))
def test_header_is_guarded_by_its_path(name):
    guard = "ATTND_" + re.sub(r"[^A-Z0-9]", "_", name.upper()) + "_"
    text = (ROOT / name).read_text()
    assert f"#ifndef {guard}\n#define {guard}\n" in text, f"{name} must be guarded by {guard}"


@pytest.mark.parametrize("name", tracked(".md"))
def test_links_of_a_page_lead_somewhere(name):
    page = ROOT / name
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
        if re.match(r"[a-z]+:", target):
            continue
        assert (page.parent / target).exists(), f"{name} links to {target}, which is not there"


def test_libraries_neither_print_nor_exit():
    """Only programs do: a library returns a Status."""
    pattern = re.compile(r"std::(cout|cerr)|\bprintf\(|\bfprintf\(|\b(std::)?(exit|abort|_exit)\(")
    programs = re.compile(r"^(client/(tools|examples)/|server/(main|flags|probe|signals)|kernels/tools/)")
    for name in tracked(".h", ".cc", ".cu", ".cuh"):
        if name.startswith(("kernels/", "server/", "client/")) and not programs.match(name):
            for number, line in enumerate((ROOT / name).read_text().splitlines(), 1):
                code = line.split("//", 1)[0]
                assert not pattern.search(code), f"{name}:{number}: {line.strip()}"
