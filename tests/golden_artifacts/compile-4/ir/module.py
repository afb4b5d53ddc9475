import tensorkiln as tk
from tensorkiln.script import R, T


@tk.script.ir_module
class Module:
    @R.function(attrs={"storages": True})
    def main_init(sizes: R.Shape(("n",))) -> R.Tuple(R.Object):
        storage0: R.Object = R.alloc_storage(size=(n + 3) // 4 * 128)
        return (storage0,)

    @R.function(attrs={"assumes": (n >= 1,), "kExternalDependency": (T.ExternalDependency("cmsis-nn", "https://example.org/cmsis-nn.git", url_type="git", version_spec="v4.0.0", license="Apache-2.0"), T.ExternalDependency("npu-tools", "/opt/npu", url_type="path", version_spec="2.1", license="LicenseRef-npu", build_time=True), T.ExternalDependency("vendor", "https://example.org/v.tar", version_spec="1", license="MIT OR ISC", sha256="abababababababababababababababababababababababababababababababab", libraries=("libv.so.1",))), "planned": True})
    def main(x: R.Tensor(("n", 4), "float32")) -> R.Tensor(("n", 4), "float32"):
        storages: R.Tuple(R.Object) = R.call_packed("alloc_cached_storage_set", Module.main_init, R.shape(n), key="main")
        c: R.Tensor((n, 4), "float32") = Module.main_run(x, storages, R.shape(n))
        return c

    @T.prim_func(outputs=1, op_class="graph", private=True)
    def main_run(x: T.Buffer(("n", 4), "float32", align=4), storages: T.Buffer((1,), "handle", align=8), c: T.Buffer(("n", 4), "float32", align=4), n: T.int64):
        T.func_attr({"host": True})
        T.call(Module.tanh, x, storages[0], n)
        T.call(Module.launchednpu0_mul, storages[0], storages[0] + (n + 3) // 4 * 64, n)
        T.call(Module.exp, storages[0] + (n + 3) // 4 * 64, c, n)

    @R.function(attrs={"external": "launchednpu0", "primitive": True})
    def launchednpu0_mul(p0: R.Tensor(("n", 4), "float32")) -> R.Tensor(("n", 4), "float32"):
        b: R.Tensor((n, 4), "float32") = R.mul(p0, R.const(2.0, "float32"))
        return b

    @T.prim_func(inplace=(0,), private=True)
    def tanh(p0: T.Buffer(("n * 4",), "float32", align=4), out: T.Buffer(("n * 4",), "float32", align=4), n: T.int64):
        for j_0_0 in T.parallel(n // 64):
            for j_0_1 in T.serial(64):
                out[T.Ramp(j_0_0 * 256 + j_0_1 * 4, 1, 4)] = T.tanh(p0[T.Ramp(j_0_0 * 256 + j_0_1 * 4, 1, 4)])
        for j_0_tail in T.serial(n // 64 * 64, extent=n % 64):
            out[T.Ramp(j_0_tail * 4, 1, 4)] = T.tanh(p0[T.Ramp(j_0_tail * 4, 1, 4)])

    @T.prim_func(inplace=(0,), private=True)
    def exp(p0: T.Buffer(("n * 4",), "float32", align=4), out: T.Buffer(("n * 4",), "float32", align=4), n: T.int64):
        for j_0_0 in T.parallel(n // 64):
            for j_0_1 in T.serial(64):
                out[T.Ramp(j_0_0 * 256 + j_0_1 * 4, 1, 4)] = T.exp(p0[T.Ramp(j_0_0 * 256 + j_0_1 * 4, 1, 4)])
        for j_0_tail in T.serial(n // 64 * 64, extent=n % 64):
            out[T.Ramp(j_0_tail * 4, 1, 4)] = T.exp(p0[T.Ramp(j_0_tail * 4, 1, 4)])
