from __future__ import annotations

import json
import pickle
import subprocess
import sys
from typing import Any

import pytest

from tensorkiln.base.errors import UserError
from tensorkiln.target import Target


def test_features_implied_by_the_processor_are_not_spelled() -> None:
    plain = Target({"mcpu": "skylake-avx512"})
    assert Target({"mcpu": "skylake-avx512", "mattr": ["+avx2", "+avx512f"]}) == plain
    without_avx512 = Target({"mcpu": "skylake-avx512", "mattr": ["-avx512f"]})
    assert not without_avx512.has("avx512vl")
    assert without_avx512.has("avx2")
    with_avx512 = Target({"mattr": "+avx512vl"})
    assert with_avx512.has("avx512f")
    assert with_avx512.has("fma")
    assert with_avx512.has("sse4.1")


def test_text_is_canonical_json() -> None:
    text = str(Target("llvm"))
    assert json.loads(text) == {
        "kind": "llvm",
        "keys": ["cpu"],
        "l1d_bytes": 32768,
        "l2_bytes": 262144,
        "mattr": [],
        "mcpu": "x86-64",
        "mtriple": "x86_64-unknown-linux-gnu",
    }
    assert text == json.dumps(json.loads(text), separators=(",", ":"))


def test_pickle() -> None:
    target = Target({"mcpu": "znver4", "host": {"mcpu": "haswell"}})
    assert pickle.loads(pickle.dumps(target)) == target


def test_is_frozen() -> None:
    with pytest.raises(AttributeError):
        Target("llvm").mcpu = "haswell"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("spec", "vector", "registers", "baseline"),
    [
        ("llvm", 16, 16, True),
        ({"mcpu": "x86-64-v3"}, 32, 16, False),
        ({"mcpu": "x86-64-v4"}, 64, 32, False),
        ({"mcpu": "x86-64-v4", "mattr": ["+prefer-256-bit"]}, 32, 32, False),
        ({"mtriple": "aarch64-linux-gnu"}, 16, 32, True),
        ({"mtriple": "aarch64-linux-gnu", "mcpu": "neoverse-n1"}, 16, 32, False),
        ({"mattr": ["+avx2"]}, 32, 16, False),
    ],
)
def test_what_follows(spec: Any, vector: int, registers: int, baseline: bool) -> None:
    target = Target(spec)
    assert target.vector_bytes == vector
    assert target.num_vector_registers == registers
    assert target.is_baseline == baseline
    assert bool(target.required_features) != baseline
    lanes = {"float32": 4, "float16": 2, "int8": 1, "float64": 8, "bool": 1, "bfloat16": 2}
    for dtype, size in lanes.items():
        assert target.vector_lanes(dtype) == vector // size
    assert target.vector_lanes("float8_e4m3fn") == vector


def test_libraries_depend_on_what_code_uses_only() -> None:
    needs = Target({"mcpu": "znver5"}).required_features
    assert {"avx512f", "fma", "bmi2"} <= set(needs)
    assert not {"clzero", "xsave", "shstk", "sse2", "rdrnd"} & set(needs)


def test_native_is_this_machine_and_canonical() -> None:
    native = Target("native")
    assert native == Target.native()
    assert native == Target(str(native))
    assert native.l1d_bytes >= 8 << 10
    import llvmlite.binding as llvm

    host_features = {name for name, on in llvm.get_host_cpu_features().items() if on}
    assert set(native.required_features) <= host_features, "a feature this machine has not"


def test_other_targets_do_not_look_at_the_machine() -> None:
    script = (
        "import sys\n"
        "from tensorkiln.target import Target\n"
        "Target('llvm'); Target({'mcpu': 'znver4'})\n"
        "assert 'llvmlite' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


ERRORS: list[tuple[Any, str, str, str]] = [
    ("lvm", "unknown-kind", "target: unknown kind 'lvm'", "'llvm'"),
    ({"kind": "natve"}, "unknown-kind", "'natve'", "'native'"),
    ({"mcup": "x"}, "unknown-key", "unknown key 'mcup'", "'mcpu'"),
    ({"mcpu": "skylak"}, "unknown-cpu", "target.mcpu", "'skylake'"),
    ({"mcpu": "cortex-a72"}, "unknown-cpu", "for x86_64", ""),
    ({"mattr": ["+avx512"]}, "unknown-feature", "target.mattr", "'avx512f'"),
    ({"mattr": ["avx2"]}, "wrong-type", "'+feature' or '-feature'", "'+avx2'"),
    ({"mattr": [1]}, "wrong-type", "1", ""),
    ({"mattr": ["+avx2", "-avx2"]}, "contradiction", "'+avx2' and '-avx2'", ""),
    ({"mattr": ["+avx2", "-avx"]}, "contradiction", "needs 'avx'", ""),
    ({"mattr": ["-sse2"]}, "contradiction", "every x86_64 has it", ""),
    ({"mtriple": "aaarch64-linux-gnu"}, "bad-triple", "'aaarch64'", "'aarch64'"),
    ({"mtriple": "sparc-unknown-linux-gnu"}, "bad-triple", "architecture", "aarch64"),
    ({"mtriple": "x86_64-unknown-linx-gnu"}, "bad-triple", "operating system", "'linux'"),
    ({"mtriple": "x86_64"}, "bad-triple", "arch-vendor-os", ""),
    ({"mtriple": 5}, "wrong-type", "expected text", ""),
    ({"l2_bytes": -3}, "out-of-range", "-3", "second-level"),
    ({"l2_bytes": True}, "wrong-type", "True", ""),
    ({"l2_bytes": "1M"}, "wrong-type", "whole number", ""),
    ({"libs": [1]}, "wrong-type", "target.libs", ""),
    ({"keys": {"a": 1}}, "wrong-type", "target.keys", ""),
    ({"kind": 1}, "wrong-type", "target.kind", ""),
    ({"attrs": 1}, "wrong-type", "target.attrs", ""),
    ({"mcpu": "haswell", "attrs": {"mcpu": "haswell"}}, "given-twice", "'mcpu'", ""),
    ({"id": "llvm", "kind": "llvm"}, "given-twice", "'kind'", ""),
    ({"system_lib": True}, "unknown-key", "system_lib", "system_lib_prefix"),
    ({"num_threads": 2}, "unknown-key", "num_threads", "when the library runs"),
    ({"host": {"mcpu": "zz"}}, "unknown-cpu", "target.host.mcpu", ""),
    ({"host": {"host": {"x": 1}}}, "unknown-key", "target.host.host", ""),
    ({"host": 5}, "user-error", "target.host", ""),
    ({"kind": "composite", "devices": []}, "wrong-type", "target.devices", "cuda"),
    ("{", "bad-json", "JSON", ""),
    ('{"mcpu":"haswell","mcpu":"znver4"}', "bad-json", "twice", ""),
    ("llvm -mcpu=haswell", "option-string", "option string", '"mcpu"'),
    (5, "user-error", "int", ""),
    ("[" * 100_000, "unknown-kind", "unknown kind", ""),
    ('{"host":' * 100_000, "bad-json", "JSON", ""),
]


@pytest.mark.parametrize(("spec", "code", "says", "hint"), ERRORS)
def test_error(spec: Any, code: str, says: str, hint: str) -> None:
    with pytest.raises(UserError) as caught:
        Target(spec)
    assert caught.value.code == code
    assert says in str(caught.value)
    assert hint in caught.value.hint


def test_has_refuses_unknown_names() -> None:
    with pytest.raises(UserError, match="avx512ff"):
        Target("llvm").has("avx512ff")
    with pytest.raises(ValueError, match="floaty"):
        Target("llvm").vector_lanes("floaty")


# KiB of the first and the second level, as makers publish them; of a processor that no tag has
# what all have.
CACHES = {
    "haswell": (32, 256),
    "skylake-avx512": (32, 1024),
    "sapphirerapids": (48, 2048),
    "znver3": (32, 512),
    "znver5": (48, 1024),
    "penryn": (32, 256),
    "x86-64-v4": (32, 256),
    "neoverse-n1": (64, 1024),
    "neoverse-v2": (64, 2048),
    "cortex-a53": (32, 512),  # the smaller one of two boards
    "cortex-x1": (32, 256),
}


@pytest.mark.parametrize("cpu", CACHES)
def test_caches_follow_from_the_processor(cpu: str) -> None:
    arm = {"mtriple": "aarch64-linux-gnu"} if cpu.startswith(("neoverse", "cortex")) else {}
    target = Target({"kind": "llvm", "mcpu": cpu, **arm})
    assert (target.l1d_bytes >> 10, target.l2_bytes >> 10) == CACHES[cpu]
    assert Target(target.to_json()) == target
    larger_l2 = Target({"kind": "llvm", "mcpu": cpu, "l2_bytes": 1 << 24, **arm})
    assert (larger_l2.l1d_bytes, larger_l2.l2_bytes) == (target.l1d_bytes, 1 << 24)
    assert larger_l2.replace(l2_bytes=None) == target
