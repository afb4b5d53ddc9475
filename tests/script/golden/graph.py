import tensorkiln as tk
from tensorkiln.script import R, T


@tk.script.ir_module(name='two layers')
class Module:
    @R.function
    def main(x: R.Tensor(("n", 64), "float32")) -> R.Tuple(R.Tensor(("n", 16), "float32"), R.Tensor(("n * 16",), "float32")):
        h: R.Tensor((n, 16), "float32") = R.linear(x, R.const("fc.weight", "float32", (64, 16), sha256="3c95c030570166ea376baed933c14cb30e5c7d88f067b58b4d44ab6b1311bb5c"), span="/fc/MatMul")
        b: R.Tensor((n, 16), "float32", layout="B/8 A B%8") = R.relayout(h, layout="B/8 A B%8")
        g: R.Tensor((n, 16), "float32") = Module.gelu(b)
        pair: R.Tuple(R.Tensor((n, 16), "float32"), R.Shape(2)) = (g, R.shape(n, 16))
        first: R.Tensor((n, 16), "float32") = pair[0]
        bias: R.Tensor((2,), "float32") = R.const([0.5, float("nan")], "float32", (2,), name="bias")
        scale: R.Tensor((), "float64") = R.const(-0.0, "float64")
        flat: R.Tensor((n * 16,), "float32") = R.reshape(first, shape=(n * 16,), zero=T.int64(0))
        odd: R.Tensor(("rows", 3), "int64") = R.op("odd name", bias, scale, axes=(0, -1), mode="constant", value=float("-inf"), **{"in": None})
        return (first, flat)

    @R.function(attrs={'primitive': True})
    def gelu(x: R.Tensor(("n", 16), "float32", layout="B/8 A B%8")) -> R.Tensor(("n", 16), "float32"):
        y: R.Tensor((n, 16), "float32") = R.gelu(x, approximate="none")
        return y
