"""WebAssembly feature sets and features, as LLVM 22 names them.

`CPUS`: a row is what another row has (no sign) and what it has beyond that (`+`).
`FEATURES`: what a feature needs to be there; asking for one asks for these too.
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
    "atomics": "",
    "bulk-memory": "bulk-memory-opt",
    "bulk-memory-opt": "",
    "call-indirect-overlong": "",
    "exception-handling": "",
    "extended-const": "",
    "fp16": "",
    "gc": "call-indirect-overlong",
    "multimemory": "",
    "multivalue": "",
    "mutable-globals": "",
    "nontrapping-fptoint": "",
    "reference-types": "call-indirect-overlong",
    "relaxed-simd": "simd128",
    "sign-ext": "",
    "simd128": "",
    "tail-call": "",
    "wide-arithmetic": "",
}

# Encodings and object-file matters that no kernel depends on.
NOT_GENERATED: str = "call-indirect-overlong exception-handling gc multimemory reference-types"
