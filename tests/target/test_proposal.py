"""Every example of the proposal that targets grew from, and both of its host conventions."""

from __future__ import annotations

from typing import Any

import pytest

from tensorkiln.base.errors import UserError
from tensorkiln.target import Target

TX2: dict[str, Any] = {
    "id": "cuda",
    "tag": "nvidia/tx2-cudnn",
    "keys": ["cuda", "gpu"],
    "libs": ["cudnn"],
    "target_host": {"id": "llvm", "mtriple": "aarch64-linux-gnu", "mattr": "+neon"},
}
EXAMPLES: list[Any] = [
    TX2,
    {"id": "composite", "targets": [{"id": "llvm"}, {"id": "cuda"}]},
    {"id": "cuda", "target_host": {"id": "llvm"}},
    {"id": "composite", "target_host": {"id": "llvm"}, "targets": [{"id": "opencl"}]},
    {"id": "webgpu", "target_host": {"id": "llvm", "mtriple": "wasm32-unknown-unknown"}},
]


@pytest.mark.parametrize("spec", EXAMPLES)
def test_example(spec: Any) -> None:
    target = Target(spec)
    assert Target(str(target)) == target
    assert hash(Target(str(target))) == hash(target)
    assert target.content_hash == Target(target.to_json()).content_hash


def test_the_first_example_is_its_tag() -> None:
    target = Target(TX2)
    assert target.tag == "nvidia/tx2-cudnn:1"
    assert target == Target("nvidia/tx2-cudnn")
    assert target["arch"] == "sm_62"
    assert target.libs == ("cudnn",)
    assert target.host is not None
    assert target.host.mtriple == "aarch64-unknown-linux-gnu"


def test_system_lib_is_refused_with_the_rule() -> None:
    host = {**TX2["target_host"], "system_lib": True}
    with pytest.raises(UserError) as caught:
        Target({**TX2, "target_host": host})
    assert caught.value.where == "target.host"
    assert "would this change the generated module?" in caught.value.hint
    assert "system_lib_prefix" in caught.value.hint


# -- hosts and composites ----------------------------------------------------------------------


def test_both_host_conventions_are_one_target() -> None:
    inside = Target({"id": "opencl", "target_host": {"id": "llvm"}})
    around = Target(
        {"id": "composite", "target_host": {"id": "llvm"}, "targets": [{"id": "opencl"}]}
    )
    assert str(inside) == str(around)
    assert inside.kind == "opencl"


def test_host_of_many_is_the_composite_s() -> None:
    host = {"mcpu": "haswell"}
    outside = Target({"host": host, "devices": ["llvm", "cuda"]})
    on_one = Target({"devices": ["llvm", {"kind": "cuda", "host": host}]})
    on_both = Target({"devices": [{"host": host}, {"kind": "cuda", "host": host}]})
    assert outside == on_one == on_both
    assert outside.host == Target(host)
    assert [device.host for device in outside.devices] == [None, None]
    assert outside != Target({"devices": ["llvm", "cuda"]})


def test_two_hosts_contradict() -> None:
    with pytest.raises(UserError, match="2 different hosts") as caught:
        Target({"host": {"mcpu": "haswell"}, "devices": [{"kind": "cuda", "host": "llvm"}, "llvm"]})
    assert caught.value.code == "contradiction"
    assert caught.value.where == "target.devices"


def test_nested_composites() -> None:
    inner = {"kind": "composite", "devices": ["cuda", {"kind": "vulkan", "host": "llvm"}]}
    target = Target({"devices": [inner, "llvm"]})
    assert target.host == Target("llvm")
    assert [d.kind for d in target.devices[0].devices] == ["cuda", "vulkan"]
    assert Target(str(target)) == target
    deep: Any = {"kind": "cuda"}
    for _ in range(30):
        deep = {"devices": [deep, "llvm"]}
    with pytest.raises(UserError, match="nested too deeply"):
        Target(deep)


def test_composite_of_one_with_a_name_for_something_stays() -> None:
    plain = Target({"kind": "composite", "devices": ["cuda"]})
    assert plain == Target("cuda")
    with_libs = Target({"kind": "composite", "devices": ["cuda"], "libs": ["cudnn"]})
    assert with_libs.kind == "composite"


def test_device_that_gets_a_host_is_no_longer_its_tag() -> None:
    target = Target({"host": "llvm", "devices": ["nvidia/t4"]})
    assert target.kind == "cuda"
    assert (target.tag, target.base_tag) == ("", "nvidia/t4:1")
    combined = Target({"host": "llvm", "devices": ["nvidia/t4", "llvm"]})
    assert combined.devices[0].tag == "nvidia/t4:1"


ERRORS: list[tuple[Any, str, str]] = [
    ({"devices": []}, "target.devices", "list of targets"),
    ({"devices": "llvm"}, "target.devices", "list of targets"),
    ({"devices": ["llvm", "cudda"]}, "target.devices[1]", "unknown kind"),
    ({"kind": "llvm", "devices": ["cuda"]}, "target.devices", "has no devices"),
    ({"devices": ["llvm", {"kind": "cuda", "arch": "sm_1"}]}, "target.devices[1].arch", "sm_1"),
    ({"kind": "composite", "mcpu": "haswell", "devices": ["llvm"]}, "target", "unknown key"),
]


@pytest.mark.parametrize(("spec", "place", "says"), ERRORS)
def test_errors_say_which_device(spec: Any, place: str, says: str) -> None:
    with pytest.raises(UserError) as caught:
        Target(spec)
    assert caught.value.where == place
    assert says in caught.value.message


# -- GPUs --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"kind": "cuda", "arch": "sm_75", "max_shared_memory_per_block": 99 << 10}, "sm_75 has"),
        ({"kind": "cuda", "thread_warp_size": 64}, "runs 32 threads in lockstep"),
        ({"kind": "rocm", "arch": "gfx90a", "thread_warp_size": 32}, "gfx90a runs 64"),
        ({"kind": "rocm", "max_shared_memory_per_block": 1 << 17}, "gfx1100 has 65536"),
    ],
)
def test_options_that_contradict(spec: Any, says: str) -> None:
    with pytest.raises(UserError, match=says) as caught:
        Target(spec)
    assert caught.value.code == "contradiction"
    assert caught.value.hint


def test_wave_size_is_written_in() -> None:
    assert Target({"kind": "rocm", "arch": "gfx942"})["thread_warp_size"] == 64
    assert Target({"kind": "rocm", "arch": "gfx1201"})["thread_warp_size"] == 32
    assert Target({"kind": "rocm", "thread_warp_size": 64})["thread_warp_size"] == 64


def test_questions_for_processors_only() -> None:
    cuda = Target("cuda")
    assert cuda.arch == "sm_75"
    for ask in (lambda: cuda.mcpu, lambda: cuda.vector_bytes, lambda: cuda.has("avx2")):
        with pytest.raises(UserError):
            ask()
    with pytest.raises(UserError, match="did you mean 'arch'"):
        cuda["arc"]


@pytest.mark.parametrize("name", ["wasm", "gpu", "cpu", "nvptx"])
def test_kinds_that_go_by_another_name(name: str) -> None:
    with pytest.raises(UserError, match="write") as caught:
        Target(name)
    assert caught.value.code == "unknown-kind"
