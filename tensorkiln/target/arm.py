"""AArch64 processors and instruction-set features, as LLVM 22 names them.

`CPUS`: each value lists a processor whose features it includes (no sign) and further features
(`+name`). `FEATURES`: the features that each feature implies; `+sha3` also turns on sha2.
"""

CPUS: dict[str, str] = {
    "generic": "+fp-armv8 +neon",
    "apple-a7": "generic +aes +sha2",
    "apple-a8": "apple-a7",
    "apple-a9": "apple-a8",
    "cyclone": "apple-a9",
    "cortex-a34": "cyclone +crc",
    "cortex-a35": "cortex-a34",
    "cortex-a53": "cortex-a35",
    "cortex-a57": "cortex-a53",
    "cortex-a72": "cortex-a57",
    "cortex-a73": "cortex-a72",
    "exynos-m3": "cortex-a73",
    "kryo": "exynos-m3",
    "thunderx": "kryo",
    "thunderxt81": "thunderx",
    "thunderxt83": "thunderxt81",
    "thunderxt88": "thunderxt83",
    "apple-a10": "thunderxt88 +rdm",
    "falkor": "apple-a10",
    "thunderx2t99": "falkor +lse",
    "apple-a11": "thunderx2t99 +fullfp16",
    "carmel": "apple-a11",
    "exynos-m4": "carmel +dotprod",
    "exynos-m5": "exynos-m4",
    "a64fx": "carmel +complxnum +sve",
    "cortex-a55": "exynos-m5 +rcpc",
    "cortex-a75": "cortex-a55",
    "cortex-a65": "cortex-a75 +ssbs",
    "cortex-a65ae": "cortex-a65",
    "cortex-a76": "cortex-a65ae",
    "cortex-a76ae": "cortex-a76",
    "cortex-a77": "cortex-a76ae",
    "cortex-a78": "cortex-a77",
    "cortex-a78ae": "cortex-a78",
    "cortex-x1": "cortex-a78ae",
    "neoverse-e1": "cortex-x1",
    "neoverse-n1": "neoverse-e1",
    "thunderx3t110": "thunderx2t99 +complxnum +jsconv +pauth +rcpc",
    "apple-a12": "thunderx3t110 +fullfp16",
    "apple-s4": "apple-a12",
    "apple-s5": "apple-s4",
    "tsv110": "exynos-m5 +complxnum +fp16fml +jsconv",
    "cortex-a78c": "neoverse-n1 +flagm +pauth",
    "cortex-x1c": "cortex-a78c +lse2 +rcpc-immo",
    "saphira": "thunderx3t110 +dit +dotprod +flagm +lse2 +rcpc-immo",
    "apple-a13": "saphira +fp16fml +fullfp16 +sha3",
    "apple-s6": "apple-a13",
    "apple-s7": "apple-s6",
    "apple-s8": "apple-s7",
    "cortex-r82": (
        "generic +ccdp +complxnum +crc +dit +dotprod +flagm +fp16fml +fullfp16 +jsconv +lse +pauth "
        "+predres +rcpc +rcpc-immo +rdm +sb +ssbs"
    ),
    "cortex-r82ae": "cortex-r82",
    "apple-a14": "cortex-r82ae +aes +altnzcv +fptoint +lse2 +sha2 +sha3",
    "apple-m1": "apple-a14",
    "neoverse-512tvb": "apple-s8 +bf16 +ccdp +i8mm +rand +sm4 +ssbs +sve",
    "neoverse-v1": "neoverse-512tvb",
    "ampere1": (
        "saphira +altnzcv +bf16 +ccdp +fptoint +fullfp16 +i8mm +predres +rand +sb +sha3 +ssbs"
    ),
    "apple-a15": "apple-m1 +bf16 +i8mm",
    "apple-a16": "apple-a15",
    "apple-a17": "apple-a16",
    "apple-m2": "apple-a17",
    "apple-m3": "apple-m2",
    "apple-s10": "apple-m3",
    "apple-s9": "apple-s10",
    "cobalt-100": "cortex-r82ae +altnzcv +bf16 +fptoint +i8mm +lse2 +sve +sve-bitperm +sve2",
    "cortex-a510": "cobalt-100",
    "cortex-a710": "cortex-a510",
    "cortex-a715": "cortex-a710",
    "cortex-x2": "cortex-a715",
    "cortex-x3": "cortex-x2",
    "neoverse-n2": "cortex-x3",
    "ampere1a": "ampere1 +sm4",
    "cortex-a320": "neoverse-n2 +wfxt",
    "cortex-a520": "cortex-a320",
    "cortex-a520ae": "cortex-a520",
    "cortex-a720": "cortex-a520ae",
    "cortex-a720ae": "cortex-a720",
    "cortex-a725": "cortex-a720ae",
    "cortex-x4": "cortex-a725",
    "cortex-x925": "cortex-x4",
    "neoverse-v2": "neoverse-n2 +rand",
    "neoverse-n3": "neoverse-v2 +wfxt",
    "neoverse-v3": "neoverse-n3",
    "neoverse-v3ae": "neoverse-v3",
    "oryon-1": "ampere1a +fp16fml",
    "ampere1b": "ampere1a +cssc +wfxt",
    "apple-a18": "apple-s9 +sme +sme-f64f64 +sme-i16i64 +sme2 +wfxt",
    "apple-m4": "apple-a18",
    "c1-nano": "cortex-x925 +hbc +mops +rcpc3 +sme +sme2",
    "c1-premium": "c1-nano",
    "c1-pro": "c1-premium",
    "c1-ultra": "c1-pro",
    "grace": "neoverse-n2 +aes +sha2 +sha3 +sm4 +sve-aes +sve-sha3 +sve-sm4",
    "gb10": "grace +wfxt",
    "apple-a19": "apple-m4 +cssc +hbc +sme-b16b16 +sme-f16f16 +sme2p1 +sve-b16b16",
    "apple-m5": "apple-a19",
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
    "aes": "",
    "altnzcv": "flagm",
    "bf16": "",
    "ccdp": "",
    "complxnum": "",
    "crc": "",
    "cssc": "",
    "dit": "",
    "dotprod": "",
    "f32mm": "sve",
    "f64mm": "sve",
    "faminmax": "",
    "flagm": "",
    "fp-armv8": "",
    "fp16fml": "fullfp16",
    "fp8": "",
    "fp8dot2": "fp8",
    "fp8dot4": "fp8",
    "fp8fma": "fp8",
    "fptoint": "",
    "fullfp16": "",
    "hbc": "",
    "i8mm": "",
    "jsconv": "",
    "lse": "",
    "lse128": "lse",
    "lse2": "",
    "lut": "",
    "mops": "",
    "neon": "",
    "pauth": "",
    "predres": "",
    "rand": "",
    "rcpc": "",
    "rcpc-immo": "rcpc",
    "rcpc3": "rcpc-immo",
    "rdm": "",
    "sb": "",
    "sha2": "",
    "sha3": "sha2",
    "sm4": "",
    "sme": "bf16 fullfp16",
    "sme-b16b16": "sme2 sve-b16b16",
    "sme-f16f16": "sme2",
    "sme-f64f64": "sme",
    "sme-f8f16": "fp8 sme2",
    "sme-f8f32": "fp8 sme2",
    "sme-fa64": "sme sve2",
    "sme-i16i64": "sme",
    "sme-lutv2": "sme2",
    "sme2": "sme",
    "sme2p1": "sme2",
    "ssbs": "",
    "ssve-fp8dot2": "fp8 sme2",
    "ssve-fp8dot4": "fp8 sme2",
    "ssve-fp8fma": "fp8 sme2",
    "sve": "fullfp16",
    "sve-aes": "aes",
    "sve-b16b16": "",
    "sve-bitperm": "",
    "sve-sha3": "sha3",
    "sve-sm4": "sm4",
    "sve2": "sve",
    "sve2-aes": "sve-aes sve2",
    "sve2-bitperm": "sve-bitperm sve2",
    "sve2-sha3": "sve-sha3 sve2",
    "sve2-sm4": "sve-sm4 sve2",
    "sve2p1": "sve2",
    "wfxt": "",
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
