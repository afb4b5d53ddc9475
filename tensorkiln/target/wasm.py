"""WebAssembly feature sets and features, as LLVM 22 names them.

`CPUS`: each value lists a set that it includes (no sign) and further features (`+name`).
`FEATURES`: what features imply, those that imply the same in one row; `+relaxed-simd` also turns on
simd128.
"""

CPUS: dict[str, str] = {
    "mvp": "",
    "lime1": (
        "mvp +bulk-memory-opt +call-indirect-overlong +extended-const +multivalue "
        "+mutable-globals +nontrapping-fptoint +sign-ext"
    ),
    "generic": (
        "mvp +bulk-memory +bulk-memory-opt +call-indirect-overlong +multivalue "
        "+mutable-globals +nontrapping-fptoint +reference-types +sign-ext"
    ),
    "bleeding-edge": (
        "generic +atomics +exception-handling +extended-const +fp16 +gc +multimemory "
        "+relaxed-simd +simd128 +tail-call"
    ),
}

FEATURES: dict[str, str] = {
    (
        "atomics bulk-memory-opt call-indirect-overlong exception-handling extended-const fp16 "
        "multimemory multivalue mutable-globals nontrapping-fptoint sign-ext simd128 tail-call "
        "wide-arithmetic"
    ): "",
    "bulk-memory": "bulk-memory-opt",
    "gc reference-types": "call-indirect-overlong",
    "relaxed-simd": "simd128",
}

# Encodings and features of the object file, which kernels do not depend on.
NOT_GENERATED: str = "call-indirect-overlong exception-handling gc multimemory reference-types"
