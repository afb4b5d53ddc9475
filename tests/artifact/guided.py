"""`python -m tests.artifact.guided c|python SECONDS`: the parsers under a coverage-guided fuzzer.

C under libFuzzer, with the address and undefined-behaviour sanitizers; needs clang. Python under
atheris (`pip install atheris`). Containers are sealed before they are read: a fuzzer does not guess
hashes. Either ends with an error at the first crash, hang, leak, or error without a type.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

# Nothing of tensorkiln is imported up here: atheris sees what is imported under its eyes.
GOLDEN = Path(__file__).parents[1] / "golden_artifacts"
CRT = Path(__file__).parents[2] / "tensorkiln" / "crt"
TARGET = r"""
#include "loader.h"
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>

/* The first byte says whether the hash is to be right. */
int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size)
{
    if (size < 1)
        return 0;
    const int is_sealed = input[0] & 1;
    unsigned char *data = malloc(size);
    kiln_container *c;
    /* Time of the process: a hang ends it, other programs that are busy do not. */
    const struct itimerval second = {{0, 0}, {1, 0}}, none = {{0, 0}, {0, 0}};
    setitimer(ITIMER_VIRTUAL, &second, NULL);
    memcpy(data, input + 1, size - 1);
    size--;
    if (is_sealed && size >= 64) {
        memcpy(data, "KILNSET", 8);
        memcpy(data + 8, "\1\0\0\0\0\0\0\0", 8);
        for (int i = 0; i < 8; i++)
            data[16 + i] = (unsigned char)((uint64_t)size >> 8 * i);
        kiln_sha256(data + 56, size - 56, data + 24);
    }
    if (kiln_read_container(data, size, &c) == 0) {
        volatile uint64_t sum = 0; /* everything that it says is there can be read */
        for (int g = 0; g < c->n_groups; g++) {
            sum += strlen(c->groups[g].loader) + strlen(c->groups[g].target_key);
            for (int i = 0; i < c->groups[g].n_children; i++)
                sum += strlen(c->groups[c->groups[g].children[i]].loader);
            for (int i = 0; i < c->groups[g].n_artifacts; i++) {
                const kiln_artifact *a = &c->groups[g].artifacts[i];
                sum += strlen(a->codegen_id) + strlen(a->file_name) + strlen(a->target_key);
                for (uint64_t b = 0; b < a->bytes; b++)
                    sum += ((const unsigned char *)a->content)[b];
            }
        }
        free(c);
    }
    setitimer(ITIMER_VIRTUAL, &none, NULL);
    free(data);
    return 0;
}
"""
FOUND = Path(__file__).parents[2] / "build" / "found"  # inputs that ended a run stay here
LIMITS = (
    f"-artifact_prefix={FOUND}/",
    "-timeout=600",
    "-rss_limit_mb=512",
    "-max_len=4096",
    "-print_final_stats=1",
)


def fuzz_c(seconds: int, folder: Path) -> int:
    """Build and run the C target; its exit code."""
    if shutil.which("clang") is None:
        print("clang is not installed: the C readers were not fuzzed", file=sys.stderr)
        return 2
    (folder / "target.c").write_text(TARGET)
    (folder / "seeds").mkdir()
    nested = (GOLDEN / "nested-1.kilnset").read_bytes()
    for first in (b"\0", b"\1"):
        (folder / "seeds" / f"nested{first[0]}").write_bytes(first + nested)
    plain = ["clang", "-D_DEFAULT_SOURCE", "-std=c99", "-g", "-O2", "-I", str(CRT)]
    checked = [*plain, "-fno-sanitize-recover=all", "-fsanitize=fuzzer,address,undefined"]
    # The hash has no branches to find, and is most of the time.
    hashing = folder / "sha256.o"
    subprocess.run([*plain, "-c", str(CRT / "sha256.c"), "-o", str(hashing)], check=True)
    sources = [CRT / f"{name}.c" for name in ("container", "error", "os_posix")]
    files = [folder / "target.c", *sources, hashing]
    subprocess.run([*checked, *map(str, files), "-o", str(folder / "target")], check=True)
    run = [str(folder / "target"), f"-max_total_time={seconds}", *LIMITS, "seeds"]
    return subprocess.run(run, cwd=folder).returncode


def fuzz_python(seconds: int, folder: Path) -> int:
    """Run the Python target; its exit code."""
    try:
        import atheris
    except ImportError:
        print("atheris is not installed: the Python readers were not fuzzed", file=sys.stderr)
        return 2
    with atheris.instrument_imports(include=["tensorkiln.artifact", "tensorkiln.runtime"]):
        from tensorkiln.artifact import ArtifactSet
        from tensorkiln.artifact.metadata import Metadata
        from tensorkiln.base.errors import UserError
        from tensorkiln.inspectors.library import inspect_library
        from tensorkiln.link.artifacts import LinkPlan
        from tensorkiln.runtime.library_file import read_library_file
        from tensorkiln.runtime.native import functions_of
        from tests.artifact.damage import sealed
        from tests.artifact.damage_files import section, small_library
    scratch, seeds = folder / "scratch", folder / "seeds"
    nested = (GOLDEN / "nested-1.kilnset").read_bytes()
    meta = section((GOLDEN / "loaders-1.so").read_bytes(), b".kiln.meta") or b""
    ArtifactSet.from_bytes(nested).save(scratch)
    seeds.mkdir()
    for number, seed in enumerate(
        (
            nested,
            small_library(meta, nested),
            (scratch / "manifest.json").read_bytes(),
            (GOLDEN / "compile-1" / "host" / "link.json").read_bytes(),
            meta.rstrip(b"\0"),
        )
    ):
        (seeds / str(number)).write_bytes(bytes([number]) + seed)

    def container(data: bytes) -> None:
        ArtifactSet.from_bytes(sealed(data))

    def library(data: bytes) -> None:
        (scratch / "x.so").write_bytes(data)
        file = read_library_file(scratch / "x.so")
        functions_of(file)
        file.artifacts()
        inspect_library(scratch / "x.so")

    def folder_form(data: bytes) -> None:
        (scratch / "manifest.json").write_bytes(data)
        ArtifactSet.load(scratch)

    def plan(data: bytes) -> None:
        from tensorkiln.artifact import Artifact

        LinkPlan.of(ArtifactSet((Artifact("host", "native", "link.json", data),)))

    def metadata(data: bytes) -> None:
        Metadata.from_bytes(data)

    targets = (container, library, folder_form, plan, metadata)

    def one(data: bytes) -> None:
        if data:
            signal.setitimer(signal.ITIMER_VIRTUAL, 1)  # time of this process
            try:
                targets[data[0] % len(targets)](data[1:])
            except UserError as error:
                assert error.code
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)

    atheris.Setup([sys.argv[0], f"-max_total_time={seconds}", *LIMITS, str(seeds)], one)
    atheris.Fuzz()  # does not come back
    return 0


def main() -> None:
    """Run one of both."""
    parser = argparse.ArgumentParser(prog="python -m tests.artifact.guided", description=__doc__)
    parser.add_argument("what", choices=("c", "python"))
    parser.add_argument("seconds", type=int, nargs="?", default=600)
    options = parser.parse_args()
    FOUND.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        fuzz = fuzz_c if options.what == "c" else fuzz_python
        raise SystemExit(fuzz(options.seconds, Path(name)))


if __name__ == "__main__":
    main()
