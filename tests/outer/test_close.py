"""Closing a library: what is refused then, and what keeps it open."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.base.errors import UserError
from tests.link import sample
from tests.outer.build import SCALAR, F, library, unary


def test_an_ordinary_library(tmp_path: Path) -> None:
    path = sample.build(tmp_path / "mlp.so")
    lib = tk.runtime.load_module(path)
    run = tk.runtime.Executor(lib, tk.cpu())
    x = np.ones((2, 8), np.float32)
    y = run["main"](x)
    main, add_one = run["main"], lib["add_one"]
    lib.close()
    lib.close()
    for use in (
        lambda: main(x),
        lambda: main(x, out=y),
        lambda: add_one(x[0], x[0]),
        lambda: run["split"],
        lambda: tk.runtime.Executor(lib, tk.cpu()),
        lambda: lib.set_num_threads(1),
    ):
        with pytest.raises(UserError, match="is closed") as caught:
            use()
        assert caught.value.code == "closed"
    np.testing.assert_allclose(y.numpy(), sample.expected(x), rtol=1e-5)
    again = tk.runtime.Executor(tk.runtime.load_module(path), tk.cpu())
    np.testing.assert_array_equal(again["main"](x).numpy(), y.numpy())


def test_a_function_that_it_calls_cannot_close_a_library() -> None:
    f = F("main", x=SCALAR)
    lib: Any = library(f.outer(f.packed("h", SCALAR, "tests.outer.close", f["x"])))
    refused: list[tuple[str, str]] = []  # their tracebacks would hold values

    def close(t: Any) -> Any:
        try:
            lib.close()
        except UserError as error:
            refused.append((error.code, str(error)))
        return t

    tk.runtime.register_function("tests.outer.close", close)
    run = tk.runtime.Executor(lib, tk.cpu())["main"]
    assert run(np.array(2, np.float32)).numpy() == 2
    assert run(np.array(3, np.float32)).numpy() == 3
    for code, sentence in refused:
        assert code == "in-use"
        assert "it has called a Python function that has not returned" in sentence
    assert len(refused) == 2
    gc.collect()
    lib.close()
    tk.runtime.unregister_function("tests.outer.close")


def test_values_keep_a_library_open() -> None:
    f = F("main", x=SCALAR)
    hooked = f.packed("h", SCALAR, "tests.outer.close", f["x"])
    lib: Any = library(unary("negate", "neg"), f.outer(hooked))
    tk.runtime.register_function("tests.outer.close", lambda t: -t.numpy())
    run = tk.runtime.Executor(lib, tk.cpu())
    y = run["main"](np.array(2, np.float32))
    with pytest.raises(UserError, match="cannot be closed: 1 of its values are in use"):
        lib.close()
    assert run["main"](y).numpy() == 2
    assert run["negate"](y).numpy() == 2
    del y
    gc.collect()
    lib.close()
    with pytest.raises(UserError, match="is closed"):
        run["main"](np.array(2, np.float32))
    tk.runtime.register_function("tests.outer.close", lambda t: t)
    tk.runtime.unregister_function("tests.outer.close")
