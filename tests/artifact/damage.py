"""Damaged containers, and the runtime's reader of them under sanitizers."""

from __future__ import annotations

import hashlib
import json
import random as random_module
import signal
import struct
import subprocess
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from tensorkiln.artifact import container
from tensorkiln.base.errors import UserError

CRT = Path(__file__).parents[2] / "tensorkiln" / "crt"

# Reads containers, each behind its length, from standard input; a line of JSON for each.
DRIVER = r"""
#include "loader.h"
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>

/* What the reader has taken at one time, at most. */
static uint64_t taken, most;

void *counted_malloc(size_t size)
{
    most = taken + size > most ? taken + size : most;
    uint64_t *made = size > (uint64_t)1 << 32 ? NULL : malloc(size + 16);
    if (made == NULL)
        return NULL;
    made[0] = size;
    taken += size;
    return made + 2;
}

void *counted_calloc(size_t count, size_t size)
{
    void *made = size != 0 && count > SIZE_MAX / size ? NULL : counted_malloc(count * size);
    return made == NULL ? NULL : memset(made, 0, count * size);
}

void counted_free(void *made)
{
    if (made == NULL)
        return;
    taken -= ((uint64_t *)made)[-2];
    free((uint64_t *)made - 2);
}

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
        /* A hang ends the program; the sanitizers take a while to hash megabytes. */
        const struct itimerval none = {{0, 0}, {0, 0}};
        const struct itimerval limit = {{0, 0}, {1 + (long)(size >> 22), 0}};
        setitimer(ITIMER_VIRTUAL, &limit, NULL);
        most = 0;
        if (kiln_read_container(data, size, &c) != 0) {
            printf("null\n");
        } else {
            printf("[");
            for (int g = 0; g < c->n_groups; g++) {
                printf("%s", g ? ", " : "");
                group(&c->groups[g]);
            }
            printf("]\n");
            counted_free(c);
        }
        setitimer(ITIMER_VIRTUAL, &none, NULL);
        free(data);
        if (taken != 0 || most > 2 * size + ((uint64_t)64 << 20)) {
            fprintf(stderr, "%llu bytes kept, %llu taken for a container of %llu\n",
                    (unsigned long long)taken, (unsigned long long)most, (unsigned long long)size);
            return 3;
        }
    }
    return 0;
}
"""


class CReader:
    """The runtime's reader, compiled with the address and undefined-behaviour sanitizers."""

    def __init__(self, folder: Path):
        self._program = folder / "reader"
        (folder / "driver.c").write_text(DRIVER)
        # The reader's own calls of malloc are counted, those of the driver are not.
        counted = [f"-D{f}=counted_{f}" for f in ("malloc", "calloc", "free")]
        build = ["gcc", "-D_DEFAULT_SOURCE", "-std=c99", "-g", "-O1", "-I", str(CRT)]
        build += ["-Wall", "-Wextra", "-Werror", "-fno-sanitize-recover=all"]
        build += ["-fsanitize=address,undefined"]
        objects = []
        for source, options in (
            (folder / "driver.c", []),
            (CRT / "container.c", counted),
            (CRT / "sha256.c", []),
            (CRT / "error.c", []),
            (CRT / "os_posix.c", []),
        ):
            objects.append(str(folder / f"{source.stem}.o"))
            subprocess.run([*build, *options, "-c", str(source), "-o", objects[-1]], check=True)
        subprocess.run([*build, *objects, "-o", str(self._program)], check=True)

    def read(self, containers: Sequence[bytes]) -> list[object]:
        """What is in each; None for what it refuses. AssertionError when a sanitizer complains."""
        stream = b"".join(struct.pack("<Q", len(c)) + c for c in containers)
        process = subprocess.run([str(self._program)], input=stream, capture_output=True)
        assert process.returncode == 0, process.stderr.decode(errors="replace")
        return [json.loads(line) for line in process.stdout.splitlines()]


def python_summary(data: bytes) -> object:
    """The same of our own reader."""
    try:
        nodes = container.unpack(memoryview(data))
    except UserError as error:
        assert error.code in ("bad-container", "container-version")
        return None
    rows: list[object] = []
    for node in nodes:
        files = [
            [f.codegen_id, f.file_name, f.target_key, hashlib.sha256(f.content).hexdigest()]  # type: ignore[arg-type]
            for f in node.files
        ]
        rows.append([node.key, list(node.children), files])
    return rows


class Watch:
    """`with Watch(size):` what is done to an input of `size` bytes ends, and takes no more than
    twice its size and 64 MiB at one time (tracemalloc must be running)."""

    def __init__(self, size: int):
        self._most = 2 * size + (64 << 20)

    def __enter__(self) -> None:
        tracemalloc.reset_peak()
        self._before = tracemalloc.get_traced_memory()[0]
        signal.signal(signal.SIGVTALRM, _hangs)
        # Far more than anything here takes, in time of this process: others may be running.
        signal.setitimer(signal.ITIMER_VIRTUAL, 20)

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        peak_bytes = tracemalloc.get_traced_memory()[1] - self._before
        assert peak_bytes <= self._most, (
            f"{peak_bytes} bytes of memory, at most {self._most} are allowed"
        )


def _hangs(number: int, frame: object) -> NoReturn:
    raise TimeoutError("no end after 20 seconds")


def sealed(data: bytes | bytearray) -> bytes:
    """The container with magic, version, length and hash that fit."""
    container = bytearray(data)
    container += bytes(max(0, 56 - len(container)))
    struct.pack_into("<8sHHIQ", container, 0, b"KILNSET\0", 1, 0, 0, len(container))
    container[24:56] = hashlib.sha256(container[56:]).digest()
    return bytes(container)


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
    """One of `seeds` with a few faults, or nodes that fit no rule; mostly sealed again, so that
    they are looked at."""
    if random.random() < 0.2:
        data = bytearray(invented_container(random))
        return bytes(data) if random.random() < 0.7 else sealed(damaged(random, data))
    data = damaged(random, bytearray(random.choice(seeds)))
    return sealed(data) if random.random() < 0.9 else bytes(data)


def damaged(
    random: random_module.Random, data: bytearray, places: Sequence[range] = ()
) -> bytearray:
    """`data` with one to four faults, at `places` or anywhere."""
    for _ in range(random.randint(1, 4)):
        if not data:
            break
        place = random.choice(places) if places else range(len(data))
        position = min(random.choice(place), len(data) - 1)
        fault = random.randrange(7)
        if fault == 0:
            data[position] ^= 1 << random.randrange(8)
        elif fault == 1:
            data[position] = random.randrange(256)
        elif fault == 2 and random.random() < 0.3:
            del data[position:]
        elif fault == 3:  # a length bomb
            size = random.choice((4, 8))
            position -= position % 4
            bomb = random.choice(_BOMBS) & ((1 << 8 * size) - 1)
            data[position : position + size] = bomb.to_bytes(size, "little")
        elif fault == 4:  # a run of it somewhere else
            size = random.choice((8, 64, 128))
            to = min(random.choice(place), len(data) - 1) // 8 * 8
            data[to : to + size] = data[position // 8 * 8 : position // 8 * 8 + size]
        elif fault == 5:
            del data[position : position + random.choice((1, 8, 64))]
        else:  # a small number: of the import tree, where it is one
            start = (
                (position if places else max(0, len(data) - 16 * random.randint(1, 12))) // 8 * 8
            )
            data[start : start + 8] = random.randrange(6).to_bytes(8, "little")
    return data


def container_of(nodes: Sequence[bytes], tree: bytes = b"", count: int | None = None) -> bytes:
    """A container of nodes as given: what a hostile writer, not a bad disk, produces."""
    members = [n + bytes(-(len(n) + 8) % 64) for n in ([*nodes, tree] if tree else nodes)]
    inner = b"".join(struct.pack("<Q", len(n) + 8) + n for n in members)
    return sealed(bytes(56) + struct.pack("<Q", len(members) if count is None else count) + inner)


def text(value: str) -> bytes:
    """A name behind its length."""
    return struct.pack("<I", len(value.encode())) + value.encode()


def tree_of(rows: Sequence[int], children: Sequence[int]) -> bytes:
    """The node of the import tree."""
    numbers = [len(rows), *rows, len(children), *children]
    return text("_import_tree") + struct.pack(f"<{len(numbers)}Q", *numbers)


_NAMES = (
    "",
    "x",
    "x",
    "native",
    "a/b.txt",
    "../up",
    "_lib",
    "_new",
    "a" * 300,
    "CON",
    "A",
    "é",
    "\n",
)


def invented_container(random: random_module.Random) -> bytes:
    """Nodes, names and imports by chance: circles, two of one name, places taken twice."""
    nodes, offset = [text("_lib")], 64 + 64
    for _ in range(random.randrange(5)):
        node, key = text(random.choice(_NAMES)), random.choice(_NAMES)
        count = random.randrange(4)
        node += struct.pack("<I", count if random.random() < 0.95 else random.choice(_BOMBS[:11]))
        for place in range(count):
            node += struct.pack("<I", random.choice((place, random.randrange(8))))
            key = random.choice(_NAMES) if random.random() < 0.1 else key
            node += text(random.choice(_NAMES)) + text(random.choice(_NAMES)) + text(key)
            size = random.choice((0, 1, 64, 100))
            node += struct.pack("<Q", size)
            node += bytes(-(offset + 8 + len(node)) % 64) + bytes(size)
        offset += 8 + len(node) + -(8 + len(node)) % 64
        nodes.append(node)
    rows, children = [0], list[int]()
    for i in range(len(nodes)):
        below = range(1, len(nodes)) if random.random() < 0.2 else range(i + 1, len(nodes))
        direct_imports = below if i == 0 and random.random() < 0.7 else []
        children += sorted({*direct_imports, *(c for c in below if random.random() < 0.3)})
        rows.append(len(children))
    return container_of(nodes, tree_of(rows, children))
