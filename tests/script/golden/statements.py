import tensorkiln as tk
from tensorkiln.script import R, T


@tk.script.ir_module
class Module:
    @T.prim_func(op_class='matmul_packed', private=True)
    def tile(A: T.Buffer(("m // 8", "k", 8), "float32"), B: T.Buffer(("k", 32), "float32", align=16), C: T.Buffer(("m", 32), "float32"), m: T.int64, k: T.int64):
        for i in T.parallel(m // 8):
            acc = T.alloc_buffer((8, 2, 16), "float32", scope="register")
            for r in T.unroll(8):
                for v in T.unroll(2):
                    acc[r, v, T.Ramp(0, 1, 16)] = T.Broadcast(T.float32(0.0), 16)
            for p in T.serial(k):
                T.prefetch(B, (p + 4, 0), locality=2)
                for r in T.unroll(8):
                    a: T.float32 = A[i, p, r]
                    wide: T.float32x16 = T.Broadcast(a, 16)
                    for v in T.unroll(2):
                        acc[r, v, T.Ramp(0, 1, 16)] = T.fma(wide, B[p, T.Ramp(v * 16, 1, 16)], acc[r, v, T.Ramp(0, 1, 16)])
            for r in T.unroll(8):
                if i * 8 + r < m:
                    T.store(C, (i * 8 + r, T.Ramp(0, 1, 16)), acc[r, 0, T.Ramp(0, 1, 16)], nontemporal=True)
                    C[i * 8 + r, T.Ramp(16, 1, 16)] = acc[r, 1, T.Ramp(0, 1, 16)]
                else:
                    T.prefetch(C, (0, 0), write=True)

    @T.prim_func(name='pool.1', inplace=(0,))
    def pool_1(x: T.Buffer((), "int32"), y: T.Buffer((), "int32")):
        with T.alloc_buffer((4,), "int32", scope="local") as b:
            for i in T.vectorized(4):
                b[i] = x[()]
        with T.let(x[()] + T.int32(1), "int32") as n:
            y[()] = n
        with T.seq():
            pass
        for i in T.serial(T.int32(2), extent=T.int32(3)):
            with T.seq():
                y[()] = i
        if x[()] > T.int32(0):
            pass
