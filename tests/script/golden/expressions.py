import tensorkiln as tk
from tensorkiln.script import R, T


@tk.script.ir_module
class Module:
    @T.prim_func
    def arithmetic(n: T.int64, m: T.int64, x: T.float32, Y: T.Buffer((16,), "int64")):
        Y[0] = n + m * 2 - (n - m) - -3
        Y[1] = (n + m) * 2 // (m % 4) * (n * m)
        Y[2] = -(n + 1) * -m
        Y[3] = n << 2 & 255 | m >> 1 ^ n
        Y[4] = T.min(n, T.max(m, 1)) + T.neg(5)
        Y[5] = T.select(n < m and m <= 7 or not n == m, n, m)
        Y[6] = T.select((n < m) == (m != 3), n, T.Cast("int64", x))
        Y[7] = T.reduce("sum", [(k, n), (j, T.int32(4), "int32")], k * T.Cast("int64", j))

    @T.prim_func
    def floats(X: T.Buffer((64,), "float32"), Y: T.Buffer((64,), "float32"), H: T.Buffer((4,), "float16")):
        Y[0] = T.exp(X[0]) / T.sqrt(T.abs(-X[1])) + T.float32(0.1)
        Y[1] = T.pow(T.float32("inf"), T.float32(-0.0)) * T.float32("nan")
        Y[2] = T.vector_reduce("add", X[T.Ramp(0, 2, 16)])
        Y[T.Ramp(0, 1, 4)] = T.shuffle(X[T.Ramp(0, 1, 4)], T.Broadcast(X[9], 4), (0, 4, 1, 5))
        Y[3] = T.bitcast_f32(T.bitcast_i32(X[3]) + T.int32(-2147483648))
        Y[4] = T.select(T.isnan(X[4]), T.float32(5e-324), X[4])
        H[0] = T.Cast("float16", X[0]) + T.float16(1.5)
