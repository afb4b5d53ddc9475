"""Every pass of the compiler leaves a module that is well formed and survives its text."""

from __future__ import annotations

import numpy as np

from tensorkiln.ir.equal import first_difference
from tensorkiln.ir.expr import Var
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Constant, Tuple, constant, tensor
from tensorkiln.ir.verify import verify
from tensorkiln.ops.builder import GraphBuilder
from tensorkiln.passes import pass_name
from tensorkiln.pipeline import relax_passes, tir_passes
from tensorkiln.script import constant_table, from_source, print_function, print_module
from tensorkiln.target import Target


def weights(name: str, *shape: int) -> Constant:
    seed = sum(name.encode())
    data = np.random.default_rng(seed).standard_normal(shape, dtype="float32")
    return constant(data, name)


def network() -> IRModule:
    """A convolution, a residual sum, pooling, a layer, layer norm and softmax; symbolic batch."""
    b = GraphBuilder()
    x = b.param("x", tensor((Var("batch"), 3, 16, 16), "float32"))
    conv = {"strides": (1, 1), "padding": (1, 1, 1, 1), "dilation": (1, 1), "groups": 1}
    h = b.emit("conv2d", x, weights("stem", 16, 3, 3, 3), weights("stem.bias", 16), **conv)
    h = b.emit("relu", h, span="stem/relu")
    r = b.emit("conv2d", h, weights("body", 16, 16, 3, 3), weights("body.bias", 16), **conv)
    h = b.emit("relu", b.emit("add", r, h))
    h = b.emit("mean", h, axes=(2, 3), keepdims=False)
    h = b.emit("linear", h, weights("head", 16, 32), weights("head.bias", 32))
    h = b.emit("layer_norm", h, weights("scale", 32), weights("shift", 32), axis=-1, eps=1e-5)
    p = b.emit("softmax", h, axis=-1)
    return IRModule((b.finish(Tuple((p, h)), "main"),))


def test_every_pass_comes_back_from_text() -> None:
    mod = network()
    target = Target({"kind": "llvm", "mcpu": "x86-64-v3"})
    changed = []
    for p in (*relax_passes(target), *tir_passes(target)):
        before, mod = mod, p(mod)
        if mod is before:
            continue
        changed.append(pass_name(p))
        verify(mod)
        text = print_module(mod)
        again = from_source(text, constant_table(mod), file=pass_name(p))
        assert first_difference(mod, again) is None, pass_name(p)
        assert print_module(again) == text
        for f, g in zip(mod.prim_funcs, again.prim_funcs, strict=True):
            assert print_function(f, canonical=True) == print_function(g, canonical=True)
    assert {"fuse_ops", "lower_groups", "vectorize_loops"} <= set(changed)
