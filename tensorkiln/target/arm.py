"""AArch64 processors and instruction-set features, as LLVM 22 names them.

`CPUS`: processors with the same features share a row, whose value lists a processor whose features
they include (no sign) and further features (`+name`). `FEATURES`: what features imply, those that
imply the same in one row; `+sha3` also turns on sha2.
"""

CPUS: dict[str, str] = {
    "generic": "+fp-armv8 +neon",
    "apple-a7 apple-a8 apple-a9 cyclone": "generic +aes +sha2",
    (
        "cortex-a34 cortex-a35 cortex-a53 cortex-a57 cortex-a72 cortex-a73 exynos-m3 kryo "
        "thunderx thunderxt81 thunderxt83 thunderxt88"
    ): "apple-a7 +crc",
    "apple-a10 falkor": "cortex-a34 +rdm",
    "thunderx2t99": "apple-a10 +lse",
    "apple-a11 carmel": "thunderx2t99 +fullfp16",
    "exynos-m4 exynos-m5": "apple-a11 +dotprod",
    "a64fx": "apple-a11 +complxnum +sve",
    "cortex-a55 cortex-a75": "exynos-m4 +rcpc",
    (
        "cortex-a65 cortex-a65ae cortex-a76 cortex-a76ae cortex-a77 cortex-a78 cortex-a78ae "
        "cortex-x1 neoverse-e1 neoverse-n1"
    ): "cortex-a55 +ssbs",
    "thunderx3t110": "thunderx2t99 +complxnum +jsconv +pauth +rcpc",
    "apple-a12 apple-s4 apple-s5": "thunderx3t110 +fullfp16",
    "tsv110": "exynos-m4 +complxnum +fp16fml +jsconv",
    "cortex-a78c": "cortex-a65 +flagm +pauth",
    "cortex-x1c": "cortex-a78c +lse2 +rcpc-immo",
    "saphira": "thunderx3t110 +dit +dotprod +flagm +lse2 +rcpc-immo",
    "apple-a13 apple-s6 apple-s7 apple-s8": "saphira +fp16fml +fullfp16 +sha3",
    "cortex-r82 cortex-r82ae": (
        "generic +ccdp +complxnum +crc +dit +dotprod +flagm +fp16fml +fullfp16 +jsconv +lse "
        "+pauth +predres +rcpc +rcpc-immo +rdm +sb +ssbs"
    ),
    "apple-a14 apple-m1": "cortex-r82 +aes +altnzcv +fptoint +lse2 +sha2 +sha3",
    "neoverse-512tvb neoverse-v1": "apple-a13 +bf16 +ccdp +i8mm +rand +sm4 +ssbs +sve",
    "ampere1": (
        "saphira +altnzcv +bf16 +ccdp +fptoint +fullfp16 +i8mm +predres +rand +sb +sha3 +ssbs"
    ),
    "apple-a15 apple-a16 apple-a17 apple-m2 apple-m3 apple-s10 apple-s9": "apple-a14 +bf16 +i8mm",
    "cobalt-100 cortex-a510 cortex-a710 cortex-a715 cortex-x2 cortex-x3 neoverse-n2": (
        "cortex-r82 +altnzcv +bf16 +fptoint +i8mm +lse2 +sve +sve-bitperm +sve2"
    ),
    "ampere1a": "ampere1 +sm4",
    (
        "cortex-a320 cortex-a520 cortex-a520ae cortex-a720 cortex-a720ae cortex-a725 cortex-x4 "
        "cortex-x925"
    ): "cobalt-100 +wfxt",
    "neoverse-v2": "cobalt-100 +rand",
    "neoverse-n3 neoverse-v3 neoverse-v3ae": "neoverse-v2 +wfxt",
    "oryon-1": "ampere1a +fp16fml",
    "ampere1b": "ampere1a +cssc +wfxt",
    "apple-a18 apple-m4": "apple-a15 +sme +sme-f64f64 +sme-i16i64 +sme2 +wfxt",
    "c1-nano c1-premium c1-pro c1-ultra": "cortex-a320 +hbc +mops +rcpc3 +sme +sme2",
    "grace": "cobalt-100 +aes +sha2 +sha3 +sm4 +sve-aes +sve-sha3 +sve-sm4",
    "gb10": "grace +wfxt",
    "apple-a19 apple-m5": "apple-a18 +cssc +hbc +sme-b16b16 +sme-f16f16 +sme2p1 +sve-b16b16",
    "ampere1c": (
        "ampere1b +faminmax +fp16fml +fp8 +fp8fma +lut +sve +sve-aes +sve-b16b16 +sve-sha3 "
        "+sve-sm4 +sve2"
    ),
    "olympus": "gb10 +faminmax +fp8 +fp8dot2 +fp8dot4 +fp8fma +lut +rand",
    "fujitsu-monaka": "olympus +hbc +mops",
}

# Processors whose scheduling model makes LLVM 22 abort on load-pair instructions; their code is
# scheduled with the generic model.
WITHOUT_MODEL: tuple[str, ...] = ("oryon-1",)

FEATURES: dict[str, str] = {
    (
        "aes bf16 ccdp complxnum crc cssc dit dotprod faminmax flagm fp-armv8 fp8 fptoint "
        "fullfp16 hbc i8mm jsconv lse lse2 lut mops neon pauth predres rand rcpc rdm sb sha2 "
        "sm4 ssbs sve-b16b16 sve-bitperm wfxt"
    ): "",
    "altnzcv": "flagm",
    "f32mm f64mm sve2": "sve",
    "fp16fml sve": "fullfp16",
    "fp8dot2 fp8dot4 fp8fma": "fp8",
    "lse128": "lse",
    "rcpc-immo": "rcpc",
    "rcpc3": "rcpc-immo",
    "sha3": "sha2",
    "sme": "bf16 fullfp16",
    "sme-b16b16": "sme2 sve-b16b16",
    "sme-f16f16 sme-lutv2 sme2p1": "sme2",
    "sme-f64f64 sme-i16i64 sme2": "sme",
    "sme-f8f16 sme-f8f32 ssve-fp8dot2 ssve-fp8dot4 ssve-fp8fma": "fp8 sme2",
    "sme-fa64": "sme sve2",
    "sve-aes": "aes",
    "sve-sha3": "sha3",
    "sve-sm4": "sm4",
    "sve2-aes": "sve-aes sve2",
    "sve2-bitperm": "sve-bitperm sve2",
    "sve2-sha3": "sve-sha3 sve2",
    "sve2-sm4": "sve-sm4 sve2",
    "sve2p1": "sve2",
}

# Features that a library need not check. The baseline (fp-armv8, neon) is always there; the code
# generator never emits the others by itself: privileged and debugging instructions, and those that
# are reached through intrinsics only, such as ciphers, and matrix tiles with their streaming mode.
NOT_GENERATED: str = (
    "aes ccdp crc dit fp-armv8 fp8 fp8dot2 fp8dot4 fp8fma jsconv lut neon pauth predres rand sb "
    "sha2 sm4 sme sme-b16b16 sme-f16f16 sme-f64f64 sme-f8f16 sme-f8f32 sme-fa64 sme-i16i64 "
    "sme-lutv2 sme2 sme2p1 ssbs ssve-fp8dot2 ssve-fp8dot4 ssve-fp8fma sve-aes sve-bitperm sve-sm4 "
    "sve2-aes sve2-bitperm sve2-sm4 wfxt"
)

# Where the runtime finds a feature: the bit in a word of Linux's auxiliary vector.
# crt/cpu_features.h is generated from this. All features that generated code may use are here;
# those in NOT_GENERATED were generated by former versions.
DETECTED: dict[str, str] = {
    "HWCAP": (
        "0 fp-armv8, 1 neon, 3 aes, 6 sha2, 7 crc, 8 lse, 10 fullfp16, 12 rdm, 13 jsconv, "
        "14 complxnum, 15 rcpc, 17 sha3, 19 sm4, 20 dotprod, 22 sve, 23 fp16fml, 24 dit, 25 lse2, "
        "26 rcpc-immo, 27 flagm, 28 ssbs, 29 sb"
    ),
    "HWCAP2": (
        "0 ccdp, 1 sve2, 2 sve-aes, 2 sve2-aes, 4 sve-bitperm, 4 sve2-bitperm, 5 sve-sha3, "
        "5 sve2-sha3, 6 sve-sm4, 6 sve2-sm4, 7 altnzcv, 8 fptoint, 10 f32mm, 11 f64mm, 13 i8mm, "
        "14 bf16, 16 rand, 23 sme, 34 cssc, 36 sve2p1, 43 mops, 44 hbc, 45 sve-b16b16, 46 rcpc3, "
        "47 lse128, 50 faminmax"
    ),
}
