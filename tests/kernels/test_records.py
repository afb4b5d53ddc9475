"""Records of measured kernels: their files, and what a compile makes of them."""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import pytest

import tensorkiln as tk
from tensorkiln.artifact.metadata import Metadata
from tensorkiln.base.errors import TensorkilnError, UserError
from tensorkiln.base.progress import Progress
from tensorkiln.cli.entry import main
from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Function
from tensorkiln.kernels.case import rand
from tensorkiln.kernels.knobs import Knob, choices_of, heights, knob
from tensorkiln.kernels.records import (
    Record,
    Records,
    read_records,
    records_of,
    schedule_digest,
    target_text,
    workload_of,
)
from tensorkiln.pipeline import relax_passes
from tensorkiln.schedule.choose import fitting
from tensorkiln.schedule.lower import LowerGroups
from tensorkiln.target import Target
from tests.schedule.groups import groups_of
from tests.transform.graphs import graph

TARGET = Target({"kind": "llvm", "mcpu": "x86-64-v2"})
OTHER = Target({"kind": "llvm", "mcpu": "x86-64-v3"})
W, B, V = rand(70, 40), rand(40), rand(40, 24)
HASH = "0123456789abcdef" * 4


def record(**changes: object) -> Record:
    row = Record(
        HASH,
        str(TARGET),
        "linear_packed",
        HASH,
        (("rows", 3),),
        "ms",
        1.0,
        1.5,
        2.0,
        "a board",
        "f",
    )
    return replace(row, **changes)  # type: ignore[arg-type]


def model() -> IRModule:
    """Two products of different sizes, of which the first has an epilogue."""
    return graph(lambda g, x: g.linear(g.relu(g.linear(x, W, B)), V), x=(37, 70))


def measured(target: Target = TARGET, mod: IRModule | None = None, **knobs: int) -> list[Record]:
    """A record for each group of a module, by default `model()`, as measurements leave it."""
    rows = []
    for group in groups_of(mod or model(), target):
        workload, text = workload_of(group.function)
        family = next(fitting(group, target))
        rows.append(
            Record(
                workload,
                target_text(target),
                family.op_class,
                schedule_digest(family),
                tuple(sorted(knobs.items())),
                "ms",
                1.0,
                1.0,
                2.0,
                "here",
                text,
            )
        )
    assert len(rows) == 2 or mod is not None
    return rows


def compiled(
    records: object = None, target: Target = TARGET, **options: object
) -> tuple[tk.Executable, list[str]]:
    progress = Progress()
    executable = tk.compile(model(), target, records=records, progress=progress, **options)  # type: ignore[arg-type]
    return executable, [n for n in progress.notes if "is the baseline" not in n]


def library(executable: tk.Executable, folder: Path) -> bytes:
    return executable.export_library(folder / "net.so").read_bytes()


# -- files ---------------------------------------------------------------------------------------


def many(count: int) -> list[Record]:
    draw = random.Random(7)
    return [
        record(
            workload=f"{draw.randrange(4):064x}",
            family=draw.choice(("linear_packed", "conv2d_direct")),
            knobs=(("rows", draw.randrange(9)),),
            unit=draw.choice(("ms", "instructions")),
            least=draw.choice((1.0, 0.1 + draw.random())),
            machine=draw.choice(("a", 'ü "quoted"\n')),
        )
        for _ in range(count)
    ]


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    rows = many(40)
    records = Records(tuple(rows))
    path = records.write(tmp_path / "r.jsonl")
    assert read_records(path) == records == records_of(path) == records_of(str(path))
    assert path.read_bytes() == records.text().encode()
    assert 1 < len(records) == len(path.read_text().splitlines()) - 1 < 40


def test_order_and_merging_do_not_change_bytes() -> None:
    rows, draw = many(60), random.Random(3)
    whole = Records(tuple(rows)).text()
    for _ in range(20):
        draw.shuffle(rows)
        at = draw.randrange(60)
        parts = Records(tuple(rows[:at])), Records(tuple(rows[at:]))
        assert parts[0].merge(parts[1]).text() == parts[1].merge(*parts).text() == whole
    assert records_of(list(parts)).text() == whole


def test_merging_keeps_the_best() -> None:
    slow, fast = record(least=1.9), record(least=1.2, knobs=(("rows", 5),))
    proxy = record(unit="instructions", least=1e6, median=1e6, untuned=9e6)
    other = record(least=0.5, untuned=0.9)  # of a faster machine: it gains less
    assert Records((slow, proxy, fast)).rows == (fast,)
    assert Records((proxy, slow)).rows == (slow,)  # times, of which a proxy only is one
    assert Records((other, record(least=0.9))).rows == (record(least=0.9),)
    stale = record(schedule="f" * 64)
    assert len(Records((stale, fast))) == 2
    assert Records((stale, fast)).of(HASH, str(TARGET)) == tuple(
        sorted((stale, fast), key=lambda row: row.rank)
    )


HEADER = '{"kiln_records":1}\n'
FOREIGN: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "it is empty"),
    "a script": (b"import this\n", ":1"),
    "bytes": (b"\x7fELF\xff\x00", ":1"),
    "other JSON": (b'{"model": 3}\n', ":1"),
    "a list": (b"[1]\n", ":1"),
    "no header": (record().to_json().__str__().encode(), ":1"),
    "a later version": (b'{"kiln_records":2}\n', "version 2"),
    "a version of text": (b'{"kiln_records":"1"}\n', "expected int"),
    "more in the header": (b'{"kiln_records":1,"x":2}\n', "unknown key 'x'"),
    "twice": (b'{"kiln_records":1,"kiln_records":1}\n', ":1"),
    "cut off": (f"{HEADER}{json.dumps(record().to_json())[:-9]}".encode(), ":2"),
    "an empty line": (f"{HEADER}\n".encode(), ":2"),
    "no object": (f"{HEADER}7\n".encode(), ":2"),
    "nested": (HEADER.encode() + b"[" * 100000, ":2"),
    "not UTF-8": (HEADER.encode() + b'{"workload":"\xff"}\n', ":2"),
    "a long line": (HEADER.encode() + b'"' + b"x" * (9 << 20) + b'"', ":2"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_and_damaged_files(name: str, tmp_path: Path) -> None:
    content, said = FOREIGN[name]
    path = tmp_path / "r.jsonl"
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        compiled(path)
    assert caught.value.code == "bad-records"
    assert said in str(caught.value) and str(path) in str(caught.value)


WRONG: dict[str, object] = {
    "missing": ...,
    "null": None,
    "true": True,
    "text": "no",
    "list": [1],
    "object": {"a": "b"},
    "number": -1,
    "huge": 1 << 70,
    "real": 1.5,
    "nan": float("nan"),
    "infinite": float("inf"),
    "half": "\ud800",
    "bool": {"a": True},
    "place": {"a b": 1},
    "hash": HASH[:-1] + "g",
}
# Values that are right for a field.
RIGHT = {
    "knobs": set(),
    "least": {"real"},
    "median": {"real"},
    "untuned": {"real"},
    "family": {"text"},
    "unit": {"text"},
    "target": {"text", "hash"},
    "machine": {"text", "hash", "missing"},
    "text": {"text", "hash", "missing"},
}


@pytest.mark.parametrize("key", [f.name for f in fields(Record)])
@pytest.mark.parametrize("name", WRONG)
def test_wrong_values(key: str, name: str, tmp_path: Path) -> None:
    row = record().to_json()
    if WRONG[name] is ...:
        del row[key]
    else:
        row[key] = WRONG[name]
    path = tmp_path / "r.jsonl"
    text = f"{HEADER}{json.dumps(record().to_json())}\n{json.dumps(row)}\n"
    path.write_text(text)
    if name in RIGHT.get(key, ()):
        assert len(read_records(path)) in (1, 2)
        return
    with pytest.raises(UserError) as caught:
        read_records(path)
    assert caught.value.code == "bad-records" and f"{path}:3" in str(caught.value)


def test_an_unknown_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(f"{HEADER}{json.dumps(record().to_json() | {'leest': 1})}\n")
    with pytest.raises(UserError, match=r"unknown key 'leest'(.|\n)*least"):
        read_records(path)


@pytest.mark.parametrize("given", [5, {"a": 1}, [3], [None], b"r.jsonl", ["no such file"], "none"])
def test_other_arguments(given: object) -> None:
    with pytest.raises(UserError):
        compiled(given)


# -- compiles ------------------------------------------------------------------------------------


def test_a_record_is_applied(tmp_path: Path) -> None:
    path = Records(tuple(measured(rows=3, terms=2))).write(tmp_path / "r.jsonl")
    plain, none = compiled()
    tuned, notes = compiled(path)
    assert notes == none == []
    assert [p.tuned for p in plain.placement()] == ["", ""]
    assert [p.tuned for p in tuned.placement()] == ["rows=3 terms=2"] * 2
    assert library(tuned, tmp_path) == library(compiled(str(path))[0], tmp_path)
    assert library(tuned, tmp_path) == library(compiled([read_records(path), path])[0], tmp_path)
    assert library(tuned, tmp_path) != library(plain, tmp_path)
    # The untuned kernels are what they were, also after tuned ones came into the cache.
    assert library(compiled()[0], tmp_path) == library(plain, tmp_path)
    assert library(compiled(Records())[0], tmp_path) == library(plain, tmp_path)


def test_only_the_kernel_of_its_workload_is_changed(tmp_path: Path) -> None:
    first, _ = measured(rows=2)
    tuned, notes = compiled(Records((first,)))
    assert [p.tuned for p in tuned.placement()] == ["rows=2", ""] and not notes


def test_names_and_other_groups_do_not_matter() -> None:
    """The record of a group is that of an equal group of another model."""
    other = graph(
        lambda g, a: g.relu(g.linear(a, rand(70, 40, seed=9), rand(40, seed=9))), a=(37, 70)
    )
    (found,) = tk.compile(other, TARGET, records=Records(tuple(measured(rows=2)))).placement()
    assert found.tuned == "rows=2"


UNUSED: dict[str, tuple[Callable[[Record], Record], str]] = {
    "other target": (lambda r: replace(r, target=target_text(OTHER)), ""),
    "other workload": (lambda r: replace(r, workload=HASH), ""),
    "not better": (lambda r: replace(r, untuned=1.0), ""),
    "untuned is best": (lambda r: replace(r, knobs=()), ""),
    "stale": (lambda r: replace(r, schedule=HASH), "the schedule of linear_packed has changed"),
    "unknown knob": (lambda r: replace(r, knobs=(("row", 3),)), "no knob 'row'"),
    "illegal value": (lambda r: replace(r, knobs=(("rows", 99),)), "rows=99 is not among 1, 2, "),
    "other family": (lambda r: replace(r, family="matmul_packed"), "but linear_packed"),
    "unknown family": (lambda r: replace(r, family="of_mine"), "of_mine with knobs"),
}


@pytest.mark.parametrize("name", UNUSED)
def test_records_that_are_not_used(name: str, tmp_path: Path) -> None:
    change, said = UNUSED[name]
    rows = [change(row) for row in measured(rows=3)]
    tuned, notes = compiled(Records(tuple(rows)))
    assert [p.tuned for p in tuned.placement()] == ["", ""]
    assert library(tuned, tmp_path) == library(compiled()[0], tmp_path)
    if not said:
        assert not notes
        return
    (note,) = notes
    assert said in note and "linear_relu" in note and note.startswith("records not used, ")


def test_a_stale_record_beside_a_good_one_is_not_told() -> None:
    rows = measured(rows=3)
    stale = [replace(row, schedule=HASH, knobs=(("rows", 2),), least=0.1) for row in rows]
    tuned, notes = compiled(Records((*rows, *stale)))
    assert [p.tuned for p in tuned.placement()] == ["rows=3"] * 2 and not notes


def test_kernels_as_c_and_debug(tmp_path: Path) -> None:
    target = Target({"kind": "c", "mcpu": "x86-64-v2"})
    rows = Records(tuple(measured(target, rows=3)))
    tuned, notes = compiled(rows, target)
    assert not notes and [p.tuned for p in tuned.placement()] == ["rows=3"] * 2
    kept, _ = compiled(Records(tuple(measured(rows=3))), debug=True)
    assert pickle.loads(pickle.dumps(kept)).placement() == kept.placement()
    assert [p.tuned for p in kept.placement() if p.kernel_class == "linear_packed"] == [
        "rows=3"
    ] * 2


def test_a_device_of_a_composite() -> None:
    """The code of a device is that of its target alone, and so are its records."""
    dsp = {
        "kind": "llvm",
        "mcpu": "x86-64-v2",
        "target_key": "dsp",
        "operators": ["linear", "relu"],
    }
    simple = {"kind": "llvm", "target_key": "simple"}
    target = Target({"kind": "composite", "host": "llvm", "devices": [simple, dsp]})
    tuned, notes = compiled(Records(tuple(measured(rows=3))), target)
    assert not notes
    found = {(p.kernel_class, p.device, p.tuned) for p in tuned.placement()}
    assert ("linear_packed", "dsp", "rows=3") in found


def test_the_library_says_what_was_chosen(tmp_path: Path) -> None:
    path = compiled(Records(tuple(measured(rows=3))))[0].export_library(tmp_path / "net.so")
    options = Metadata.from_json(dict(tk.runtime.read_metadata(path))).origin.options
    assert options["records"] == {"linear_relu": "rows=3", "linear": "rows=3"}
    plain = compiled()[0].export_library(tmp_path / "net.so")
    assert "records" not in Metadata.from_json(dict(tk.runtime.read_metadata(plain))).origin.options


def test_a_pipeline_without_the_pass() -> None:
    with pytest.raises(
        UserError, match="records= needs a relax pipeline with the pass LowerGroups"
    ):
        compiled(Records(tuple(measured(rows=3))), relax_pipeline="none")


def with_knobs(*rows: tuple[str, str, int]) -> list[Callable[[IRModule], IRModule]]:
    """The passes of a compile, with knobs that a person writes into each group."""
    passes = relax_passes(TARGET)
    at = next(i for i, p in enumerate(passes) if isinstance(p, LowerGroups))

    def write(mod: IRModule) -> IRModule:
        return mod.with_functions(
            tuple(
                replace(f, attrs=Attrs.of(**{**f.attrs, "knobs": rows}))
                if isinstance(f, Function) and f.is_primitive
                else f
                for f in mod.functions
            )
        )

    return [*passes[:at], write, *passes[at:]]


def test_knobs_of_a_person() -> None:
    own = with_knobs(("linear_packed", "rows", 2), ("matmul_packed", "rows", 77))
    found, _ = compiled(Records(tuple(measured(rows=3))), relax_pipeline=own)
    assert [p.tuned for p in found.placement()] == ["rows=2"] * 2  # the attribute stays


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (("linear_packed", "rows", 99), "rows=99 is not among"),
        (("linear_packed", "rowz", 2), "no knob 'rowz'(.|\n)*did you mean 'rows'"),
        (("linear_packed", "rows", "2"), "attribute 'knobs' is"),
    ],
)
def test_wrong_knobs_of_a_person(row: tuple[str, str, int], said: str) -> None:
    with pytest.raises(TensorkilnError, match=said):
        compiled(relax_pipeline=with_knobs(row))


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from examples.make_mlp import make_mlp

    (tmp_path / "mlp.onnx").write_bytes(make_mlp().SerializeToString())
    good = Records(tuple(measured(rows=3))).write(tmp_path / "r.jsonl")
    bad = tmp_path / "bad.jsonl"
    bad.write_text(f"{HEADER}[]\n")
    words = ["compile", str(tmp_path / "mlp.onnx"), "-o", str(tmp_path / "net.so"), "--quiet"]
    assert main([*words, "--records", str(good), "--records", str(good)]) == 0
    assert main([*words, "--records", str(bad)]) != 0
    assert f"{bad}:2" in capsys.readouterr().err


# -- knobs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [
        ("a b", (1, 2), 1),
        ("a", (), 1),
        ("a", (1, 2), 3),
        ("a", (2, 1), 1),
        ("a", (1, 1), 1),
        ("a", [1, 2], 1),
        ("a", (1, 2.0), 1),
        ("a", (0, True), 0),
    ],
)
def test_wrong_declarations(given: tuple[str, tuple[int, ...], int]) -> None:
    with pytest.raises(UserError) as caught:
        Knob(*given, "")
    assert caught.value.code == "bad-knob"


def test_choices() -> None:
    knobs = (knob("a", (1, 3), 2, ""), knob("b", (), 5, ""))
    assert choices_of(knobs, {}) == {"a": 2, "b": 5}
    assert choices_of(knobs, {"a": 3}) == {"a": 3, "b": 5}
    for wrong in ({"c": 1}, {"a": 4}, {"b": 1}):
        with pytest.raises(UserError):
            choices_of(knobs, wrong)


def test_heights_cut_differently() -> None:
    assert heights(None, 4, 2) == (1, 2, 3, 4)
    for extent in range(1, 30):
        for untuned in range(1, 9):
            found = heights(extent, 8, untuned)
            pieces = [-(-extent // n) for n in found]
            assert untuned in found and len(set(pieces)) == len(pieces)
            assert set(pieces) == {-(-extent // n) for n in range(1, 9)}
