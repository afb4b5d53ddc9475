"""Damaged containers, and the runtime's reader of them under sanitizers."""

from __future__ import annotations

import hashlib
import json
import random as random_module
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tensorkiln.artifact import ArtifactSet
from tensorkiln.base.errors import UserError

CRT = Path(__file__).parents[2] / "tensorkiln" / "crt"

# Reads containers, each behind its length, from standard input; a line of JSON for each.
DRIVER = r"""
#include "loader.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void quoted(const char *text)
{
    putchar('"');
    for (; *text; text++)
        if (*text == '"' || *text == '\\')
            printf("\\%c", *text);
        else
            putchar(*text);
    putchar('"');
}

static void group(const kiln_group *g)
{
    printf("[");
    quoted(g->loader);
    printf(", [");
    for (int i = 0; i < g->n_children; i++)
        printf("%s%d", i ? ", " : "", g->children[i]);
    printf("], [");
    for (int i = 0; i < g->n_artifacts; i++) {
        const kiln_artifact *a = &g->artifacts[i];
        unsigned char digest[32];
        kiln_sha256(a->content, a->bytes, digest);
        printf("%s[", i ? ", " : "");
        quoted(a->codegen_id), printf(", "), quoted(a->file_name), printf(", ");
        quoted(a->target_key), printf(", \"");
        for (int d = 0; d < 32; d++)
            printf("%02x", digest[d]);
        printf("\"]");
    }
    printf("]]");
}

int main(void)
{
    uint64_t size;
    while (fread(&size, 8, 1, stdin) == 1) {
        unsigned char *data = malloc(size ? size : 1); /* exact, so that a read past it is seen */
        kiln_container *c;
        if (fread(data, 1, size, stdin) != size)
            return 2;
        alarm(1); /* a hang ends the program */
        if (kiln_read_container(data, size, &c) != 0) {
            printf("null\n");
        } else {
            printf("[");
            for (int g = 0; g < c->n_groups; g++) {
                printf("%s", g ? ", " : "");
                group(&c->groups[g]);
            }
            printf("]\n");
            free(c);
        }
        alarm(0);
        free(data);
    }
    return 0;
}
"""


class CReader:
    """The runtime's reader, compiled with the address and undefined-behaviour sanitizers."""

    def __init__(self, folder: Path):
        self._program = folder / "reader"
        (folder / "driver.c").write_text(DRIVER)
        sources = [folder / "driver.c", *(CRT / f for f in ("container.c", "sha256.c", "error.c"))]
        subprocess.run(
            ["gcc", "-std=c99", "-g", "-O1", "-Wall", "-Wextra", "-Werror",
             "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-I", str(CRT),
             *map(str, sources), "-o", str(self._program)],
            check=True,
        )  # fmt: skip

    def read(self, containers: Sequence[bytes]) -> list[object]:
        """What is in each; None for what it refuses. AssertionError when a sanitizer complains."""
        stream = b"".join(struct.pack("<Q", len(c)) + c for c in containers)
        done = subprocess.run([str(self._program)], input=stream, capture_output=True)
        assert done.returncode == 0, done.stderr.decode(errors="replace")
        return [json.loads(line) for line in done.stdout.splitlines()]


def python_summary(data: bytes) -> object:
    """The same of our own reader."""
    try:
        artifacts = ArtifactSet.from_bytes(data)
    except UserError as error:
        assert error.code in ("bad-container", "container-version")
        return None
    del artifacts
    from tensorkiln.artifact import container

    rows: list[object] = []
    for node in container.unpack(memoryview(data)):
        files = [
            [f.codegen_id, f.file_name, f.target_key, hashlib.sha256(f.content).hexdigest()]  # type: ignore[arg-type]
            for f in node.files
        ]
        rows.append([node.key, list(node.children), files])
    return rows


def sealed(data: bytes | bytearray) -> bytes:
    """The container with magic, version, length and hash that fit."""
    made = bytearray(data)
    made += bytes(max(0, 56 - len(made)))
    struct.pack_into("<8sHHIQ", made, 0, b"KILNSET\0", 1, 0, 0, len(made))
    made[24:56] = hashlib.sha256(made[56:]).digest()
    return bytes(made)


_BOMBS = (
    0,
    1,
    2,
    63,
    64,
    65,
    0x7F,
    0xFF,
    0xFFFF,
    0x7FFFFFFF,
    0xFFFFFFFF,
    (1 << 63) - 1,
    (1 << 64) - 1,
)


def damaged_container(random: random_module.Random, seeds: Sequence[bytes]) -> bytes:
    """One of `seeds` with a few faults; mostly sealed again, so that they are looked at."""
    data = bytearray(random.choice(seeds))
    for _ in range(random.randint(1, 4)):
        if not data:
            break
        at = random.randrange(len(data))
        fault = random.randrange(7)
        if fault == 0:
            data[at] ^= 1 << random.randrange(8)
        elif fault == 1:
            data[at] = random.randrange(256)
        elif fault == 2:
            del data[at:]
        elif fault == 3:  # a length bomb
            size = random.choice((4, 8))
            at -= at % 4
            bomb = random.choice(_BOMBS) & ((1 << 8 * size) - 1)
            data[at : at + size] = bomb.to_bytes(size, "little")
        elif fault == 4:  # a run of it somewhere else
            size = random.choice((8, 64, 128))
            to = random.randrange(len(data)) // 8 * 8
            data[to : to + size] = data[at // 8 * 8 : at // 8 * 8 + size]
        elif fault == 5:
            del data[at : at + random.choice((1, 8, 64))]
        else:  # numbers of the import tree, at the end
            start = max(0, len(data) - 16 * random.randint(1, 12)) // 8 * 8
            data[start : start + 8] = random.randrange(6).to_bytes(8, "little")
    return sealed(data) if random.random() < 0.9 else bytes(data)
