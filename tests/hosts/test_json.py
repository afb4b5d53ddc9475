"""JSON that describes a library: C hosts and Python read and refuse the same texts."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tensorkiln.base.json_text import MAX_NAMES, parse_json
from tests.hosts.build import CHECKED, c_program

PROGRAM = r"""
#include "kiln_host.h"
#include <sys/resource.h>

/* Texts behind their lengths from standard input: whether each is read, and the member "name". */
int main(void)
{
    uint32_t size;
    while (fread(&size, 4, 1, stdin) == 1) {
        char *text = (char *)malloc((size_t)size + 1), *room = (char *)malloc((size_t)size + 16);
        if (text == NULL || room == NULL || fread(text, 1, size, stdin) != size)
            return 2;
        text[size] = 0;
        room[0] = '-';
        room[1] = 0;
        const int is_read = kiln_host_json_check(text);
        const char *const name = is_read ? kiln_host_json_member(text, "name") : NULL;
        if (name != NULL)
            kiln_host_json_decode(name, room);
        printf("%d %s\n", is_read, room);
        free(text);
        free(room);
    }
    return 0;
}
"""


def _many(count: int) -> str:
    return json.dumps({f"k{i}": i for i in range(count)})


TEXTS = (
    "{}", "[]", "{", "", "[1, 2, {}]", '{"name": 1}', '{"name": "a", "x": {"name": 2}}',
    '{"name": 1, "name": 2}', '{"a": {"name": 1, "name": 1}}', '[{"x": 1, "x": 1}]',
    '{"\\u006eame": 5}', '{"name": 1, "\\u006eame": 2}', '{"na\\u006de": 1, "nam\\u0065": 2}',
    '{"é": 1, "\\u00e9": 2}', '{"😀": 1, "\\ud83d\\ude00": 2}', '{"é": 1, "e": 2, "\\u00ea": 3}',
    '{"\\"": 1, "\\u0022": 2}', '{"\\\\": 1, "\\/": 2}', '{"/": 1, "\\/": 2}',
    '{"\\t": 1, "\\u0009": 2}',
    '{"name2": 1, "name": 3}', '{"nam": 1, "name": 3}', '{"": 1, "": 2}', '{"": 1, "x": 2}',
    '{"a": 1,}', '{"a": 1 "b": 2}', '{,"a": 1}', '{"a"}', '{"a": }', "[1,]", "[,1]", "[1 2]",
    '{"a": 1}}',
    _many(MAX_NAMES), _many(MAX_NAMES + 1), "[" * 60 + "]" * 60,
    "[" + "1," * (1 << 18) + "1]", "[" + "1," * ((1 << 18) - 2) + "1]", '"' + "a" * (8 << 20) + '"',
)  # fmt: skip


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("json")
    (folder / "json.c").write_text(PROGRAM)
    return c_program(folder / "json.c", folder / "json", *CHECKED)


def test_both_readers(program: Path) -> None:
    stream = b"".join(len(t.encode()).to_bytes(4, "little") + t.encode() for t in TEXTS)
    process = subprocess.run([str(program)], input=stream, capture_output=True, timeout=60)
    assert process.returncode == 0, process.stderr[-3000:]
    lines = process.stdout.decode().splitlines()
    for text, line in zip(TEXTS, lines, strict=True):
        try:
            value = parse_json(text.encode(), unique=True, names=MAX_NAMES)
        except ValueError:
            assert line == "0 -", text[:80]
            continue
        name = value.get("name", "-") if isinstance(value, dict) else "-"
        assert line == f"1 {name}", text[:80]
