"""x86-64 processors and instruction-set features, as LLVM 22 names them.

`CPUS`: processors with the same features share a row, whose value lists a processor whose features
they include (no sign) and further features (`+name`). `FEATURES`: what features imply, those that
imply the same in one row; `+avx2` also turns on avx.
"""

CPUS: dict[str, str] = {
    "x86-64": "+cmov +cx8 +fxsr +mmx +sse +sse2",
    "athlon-fx athlon64 k8 opteron": "x86-64 +prfchw",
    "nocona": "x86-64 +cx16 +sse3",
    "athlon64-sse3 k8-sse3 opteron-sse3": "nocona +prfchw",
    "core2": "nocona +sahf +ssse3",
    "atom bonnell": "core2 +movbe",
    "penryn": "core2 +sse4.1",
    "amdfam10 barcelona": "athlon64-sse3 +lzcnt +popcnt +sahf +sse4a",
    "btver1": "amdfam10 +ssse3",
    "corei7 nehalem x86-64-v2": "penryn +crc32 +popcnt +sse4.2",
    "westmere": "corei7 +pclmul",
    "sandybridge": "westmere +avx +xsave +xsaveopt",
    "silvermont slm": "westmere +movbe +prfchw +rdrnd",
    "ivybridge": "sandybridge +f16c +fsgsbase +rdrnd",
    "x86-64-v3": "corei7 +avx +avx2 +bmi +bmi2 +f16c +fma +lzcnt +movbe +xsave",
    "bdver1": "westmere +aes +avx +fma4 +lwp +lzcnt +prfchw +sse4a +xop +xsave",
    "btver2": "sandybridge +aes +bmi +f16c +lzcnt +movbe +prfchw +sse4a",
    "goldmont": (
        "silvermont +aes +clflushopt +fsgsbase +rdseed +sha +xsave +xsavec +xsaveopt +xsaves"
    ),
    "bdver2": "bdver1 +bmi +f16c +fma +tbm",
    "haswell": "x86-64-v3 +fsgsbase +invpcid +pclmul +rdrnd +xsaveopt",
    "x86-64-v4": "x86-64-v3 +avx512bw +avx512cd +avx512dq +avx512f +avx512vl",
    "goldmont-plus": "goldmont +ptwrite +rdpid",
    "bdver3": "bdver2 +fsgsbase +xsaveopt",
    "broadwell": "haswell +adx +prfchw +rdseed",
    "tremont": "goldmont-plus +clwb +gfni",
    "knl": (
        "x86-64-v3 +adx +aes +avx512cd +avx512f +fsgsbase +pclmul +prfchw +rdrnd +rdseed +xsaveopt"
    ),
    "knm": "knl +avx512vpopcntdq",
    "bdver4": "bdver3 +avx2 +bmi2 +movbe +mwaitx +rdrnd",
    "skylake": "broadwell +aes +clflushopt +xsavec +xsaves",
    "znver1": "goldmont +adx +avx +avx2 +bmi +bmi2 +clzero +f16c +fma +lzcnt +mwaitx +sse4a",
    "skx skylake-avx512": "skylake +avx512bw +avx512cd +avx512dq +avx512f +avx512vl +clwb +pku",
    "znver2": "znver1 +clwb +rdpid +rdpru +wbnoinvd",
    "cascadelake": "skx +avx512vnni",
    "cannonlake": (
        "skylake +avx512bw +avx512cd +avx512dq +avx512f +avx512ifma +avx512vbmi +avx512vl +pku +sha"
    ),
    "cooperlake": "cascadelake +avx512bf16",
    "znver3": "znver2 +invpcid +pku +vaes +vpclmulqdq",
    "icelake-client rocketlake": (
        "cannonlake +avx512bitalg +avx512vbmi2 +avx512vnni +avx512vpopcntdq +gfni +rdpid +vaes "
        "+vpclmulqdq"
    ),
    "alderlake gracemont meteorlake raptorlake": (
        "skylake +avxvnni +clwb +gfni +hreset +kl +movdir64b +movdiri +pconfig +pku +ptwrite "
        "+rdpid +serialize +sha +shstk +vaes +vpclmulqdq +waitpkg +widekl"
    ),
    "icelake-server": "icelake-client +clwb +pconfig +wbnoinvd",
    "tigerlake": "icelake-client +avx512vp2intersect +clwb +movdir64b +movdiri +shstk",
    "arrowlake": "alderlake +avxifma +avxneconvert +avxvnniint8 +cmpccxadd +enqcmd +uintr",
    "grandridge sierraforest": "arrowlake +cldemote",
    "znver4": "icelake-client +avx512bf16 +clwb +clzero +mwaitx +rdpru +shstk +sse4a +wbnoinvd",
    "pantherlake wildcatlake": (
        "skylake +avxifma +avxneconvert +avxvnni +avxvnniint16 +avxvnniint8 +clwb +cmpccxadd "
        "+enqcmd +gfni +hreset +movdir64b +movdiri +pconfig +pku +ptwrite +rdpid +serialize "
        "+sha +sha512 +shstk +sm3 +sm4 +uintr +vaes +vpclmulqdq +waitpkg"
    ),
    "arrowlake-s lunarlake": "pantherlake +kl +widekl",
    "clearwaterforest": "pantherlake +cldemote +prefetchi +usermsr",
    "znver5": "znver4 +avx512vp2intersect +avxvnni +movdir64b +movdiri +prefetchi",
    "emeraldrapids sapphirerapids": (
        "icelake-server +amx-bf16 +amx-int8 +amx-tile +avx512bf16 +avx512fp16 +avxvnni "
        "+cldemote +enqcmd +movdir64b +movdiri +ptwrite +serialize +shstk +tsxldtrk +uintr "
        "+waitpkg"
    ),
    "graniterapids": "emeraldrapids +amx-fp16 +prefetchi",
    "graniterapids-d": "graniterapids +amx-complex",
    "novalake": (
        "pantherlake +avx10.1 +avx10.2 +avx512bf16 +avx512bitalg +avx512bw +avx512cd +avx512dq "
        "+avx512f +avx512fp16 +avx512ifma +avx512vbmi +avx512vbmi2 +avx512vl +avx512vnni "
        "+avx512vpopcntdq +ccmp +egpr +movrs +ndd +nf +ppx +prefetchi +push2pop2 +zu"
    ),
    "diamondrapids": (
        "graniterapids-d +amx-avx512 +amx-fp8 +amx-movrs +amx-tf32 +avx10.1 +avx10.2 +avxifma "
        "+avxneconvert +avxvnniint16 +avxvnniint8 +ccmp +cmpccxadd +egpr +movrs +ndd +nf +ppx "
        "+push2pop2 +sha512 +sm3 +sm4 +zu"
    ),
}

FEATURES: dict[str, str] = {
    (
        "adx aes amx-tile bmi bmi2 ccmp cf cldemote clflushopt clwb clzero cmov cmpccxadd "
        "crc32 cx16 cx8 egpr enqcmd fsgsbase fxsr gfni hreset invpcid kl lwp lzcnt mmx movbe "
        "movdir64b movdiri movrs mwaitx ndd nf pclmul pconfig pku popcnt ppx prefetchi prfchw "
        "ptwrite push2pop2 raoint rdpid rdpru rdrnd rdseed rtm sahf serialize sgx sha shstk "
        "sse sse2 sse3 tbm tsxldtrk uintr usermsr waitpkg wbnoinvd xsave zu"
    ): "",
    "amx-avx512 amx-bf16 amx-complex amx-fp16 amx-fp8 amx-int8 amx-movrs amx-tf32": "amx-tile",
    "avx": "sse4.2",
    "avx10.1": (
        "avx512bf16 avx512bitalg avx512cd avx512dq avx512fp16 avx512ifma avx512vbmi "
        "avx512vbmi2 avx512vl avx512vnni avx512vpopcntdq"
    ),
    "avx10.2": "avx10.1",
    "avx2 f16c fma sm3": "avx",
    "avx512bf16 avx512bitalg avx512fp16 avx512vbmi avx512vbmi2": "avx512bw",
    (
        "avx512bw avx512cd avx512dq avx512ifma avx512vl avx512vnni avx512vp2intersect "
        "avx512vpopcntdq"
    ): "avx512f",
    "avx512f": "avx2 f16c fma",
    "avxifma avxneconvert avxvnni avxvnniint16 avxvnniint8 sha512 sm4": "avx2",
    "fma4": "avx sse4a",
    "sse4.1": "ssse3",
    "sse4.2": "crc32 sse4.1",
    "sse4a ssse3": "sse3",
    "vaes": "aes avx2",
    "vpclmulqdq": "avx pclmul",
    "widekl": "kl",
    "xop": "fma4",
    "xsavec xsaveopt xsaves": "xsave",
}

# Features that a library need not check. The baseline (cmov, cx8, fxsr, mmx, sse, sse2) is always
# there; the code generator never emits the others by itself: cache and memory control, random
# numbers, privileged, debugging and state-saving instructions, and those that are reached through
# intrinsics only, such as ciphers.
NOT_GENERATED: str = (
    "adx aes amx-avx512 amx-complex amx-fp16 amx-fp8 amx-movrs amx-tf32 "
    "avx512vp2intersect cldemote clflushopt clwb clzero cmov cmpccxadd crc32 cx16 cx8 enqcmd "
    "fsgsbase fxsr hreset invpcid kl lwp mmx movdir64b movdiri movrs mwaitx pclmul pconfig pku "
    "prefetchi prfchw ptwrite raoint rdpid rdpru rdrnd rdseed rtm serialize sgx sha sha512 shstk "
    "sm3 sm4 sse sse2 tsxldtrk uintr usermsr vaes vpclmulqdq waitpkg wbnoinvd widekl xsave xsavec "
    "xsaveopt xsaves"
)

# What only certain programs have a use for: types of their values, "short" for all of fewer than 32
# bits, the scope "tile" of buffers; nothing where no program of ours has a use. A kernel of another
# program is compiled without the feature.
USES: dict[str, str] = {
    "amx-bf16 amx-int8 amx-tile": "tile",
    "avx512bf16 avxneconvert": "bfloat16",
    "avx512fp16": "float16",
    "avx512ifma avx512vpopcntdq avxifma": "",
    "avx512bitalg avx512vbmi avx512vbmi2 avx512vnni avxvnni avxvnniint16 avxvnniint8": "short",
    "gfni sse4a": "short",
}

# Where the runtime finds a feature: a cpuid register, named as in crt/cpu.c, and the bit in it.
# crt/cpu_features.h is generated from this. All features that generated code may use are here;
# those in NOT_GENERATED were generated by former versions.
DETECTED: dict[str, str] = {
    "LEAF1_ECX": (
        "0 sse3, 1 pclmul, 9 ssse3, 12 fma, 13 cx16, 19 sse4.1, 20 sse4.2, 20 crc32, 22 movbe, "
        "23 popcnt, 25 aes, 28 avx, 29 f16c"
    ),
    "LEAF1_EDX": "8 cx8, 15 cmov, 23 mmx, 24 fxsr, 25 sse, 26 sse2",
    "LEAF7_EBX": (
        "3 bmi, 5 avx2, 8 bmi2, 16 avx512f, 17 avx512dq, 19 adx, 21 avx512ifma, 28 avx512cd, "
        "29 sha, 30 avx512bw, 31 avx512vl"
    ),
    "LEAF7_ECX": (
        "1 avx512vbmi, 6 avx512vbmi2, 8 gfni, 9 vaes, 10 vpclmulqdq, 11 avx512vnni, "
        "12 avx512bitalg, 14 avx512vpopcntdq"
    ),
    "LEAF7_EDX": "8 avx512vp2intersect, 22 amx-bf16, 23 avx512fp16, 24 amx-tile, 25 amx-int8",
    "LEAF7_1_EAX": "4 avxvnni, 5 avx512bf16, 23 avxifma",
    "LEAF7_1_EDX": "4 avxvnniint8, 5 avxneconvert, 10 avxvnniint16, 21 egpr, 21 ppx, 21 push2pop2",
    "AVX10": "0 avx10.1, 1 avx10.2",  # bit n: version n + 1
    "APX": "0 ccmp, 0 cf, 0 ndd, 0 nf, 0 zu",
    "EXT1_ECX": "0 sahf, 5 lzcnt, 6 sse4a, 11 xop, 16 fma4, 21 tbm",
}

# The register state that the operating system must save (XCR0 bits, named as in crt/cpu.c) for a
# feature that is, or implies, one of the features listed. The first match counts: avx512bw implies
# avx512f and avx, and needs ZMM.
STATES: dict[str, str] = {
    "TILE": "amx-tile",
    "ZMM": "avx512f",
    "YMM": "avx",
    "EGPR": "ccmp cf egpr ndd nf ppx push2pop2 zu",
}
