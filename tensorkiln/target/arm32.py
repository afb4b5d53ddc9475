"""32-bit Arm processors and features, as LLVM 22 names them: application and microcontroller.

`CPUS`: by architecture; each value lists a processor whose features it includes (no sign) and
further features (`+name`). Features that the architecture implies, such as Thumb-2, come with the
triple and are not listed. `A_FEATURES` (application), `M_FEATURES` (microcontroller): the features
that each feature implies; `+mve` also turns on dsp.
"""

CPUS: dict[str, dict[str, str]] = {
    "armv6": {
        "generic": "",
        "arm1136jf-s": "generic +fp64 +fpregs +fpregs64 +vfp2 +vfp2sp",
        "arm1176jzf-s": "arm1136jf-s",
    },
    "armv7": {
        "generic": (
            "+d32 +fp64 +fpregs +fpregs64 +neon +vfp2 +vfp2sp +vfp3 +vfp3d16 +vfp3d16sp +vfp3sp"
        ),
        "cortex-a8": "generic",
        "cortex-a9": "cortex-a8 +fp16",
        "cortex-a5": "cortex-a9 +vfp4 +vfp4d16 +vfp4d16sp +vfp4sp",
        "cortex-a12": "cortex-a5 +hwdiv +hwdiv-arm",
        "cortex-a15": "cortex-a12",
        "cortex-a17": "cortex-a15",
        "cortex-a7": "cortex-a17",
        "cortex-a32": "cortex-a7 +aes +crc +fp-armv8 +fp-armv8d16 +fp-armv8d16sp +fp-armv8sp +sha2",
        "cortex-a35": "cortex-a32",
        "cortex-a53": "cortex-a35",
        "cortex-a57": "cortex-a53",
        "cortex-a72": "cortex-a57",
        "cortex-a73": "cortex-a72",
        "cortex-a55": "cortex-a73 +dotprod",
        "cortex-a75": "cortex-a55",
        "cortex-a76": "cortex-a75 +fpregs16 +fullfp16",
        "cortex-a77": "cortex-a76",
        "cortex-a78": "cortex-a77",
    },
    "thumbv6m": {
        "generic": "",
        "cortex-m0": "generic",
        "cortex-m0plus": "cortex-m0",
        "cortex-m1": "cortex-m0plus",
    },
    "thumbv7m": {
        "generic": "+hwdiv",
        "cortex-m3": "generic",
    },
    "thumbv7em": {
        "generic": "+dsp +hwdiv",
        "cortex-m4": "generic +fp16 +fpregs +vfp2sp +vfp3d16sp +vfp4d16sp",
        "cortex-m7": (
            "cortex-m4 +fp-armv8d16 +fp-armv8d16sp +fp64 +fpregs64 +vfp2 +vfp3d16 +vfp4d16"
        ),
    },
    "thumbv8m.base": {
        "generic": "+hwdiv",
        "cortex-m23": "generic",
    },
    "thumbv8m.main": {
        "generic": "+hwdiv",
        "cortex-m33": "generic +dsp +fp-armv8d16sp +fp16 +fpregs +vfp2sp +vfp3d16sp +vfp4d16sp",
        "cortex-m35p": "cortex-m33",
    },
    "thumbv8.1m.main": {
        "generic": "+hwdiv +lob",
        "cortex-m52": (
            "generic +dsp +fp-armv8d16 +fp-armv8d16sp +fp16 +fp64 +fpregs +fpregs16 +fpregs64 "
            "+fullfp16 +mve +mve.fp +vfp2 +vfp2sp +vfp3d16 +vfp3d16sp +vfp4d16 +vfp4d16sp"
        ),
        "cortex-m55": "cortex-m52",
        "cortex-m85": "cortex-m55",
    },
}

A_FEATURES: dict[str, str] = {
    "aes": "neon",
    "bf16": "neon",
    "crc": "",
    "d32": "",
    "dotprod": "neon",
    "fp-armv8": "fp-armv8d16 fp-armv8sp vfp4",
    "fp-armv8d16": "fp-armv8d16sp vfp4d16",
    "fp-armv8d16sp": "vfp4d16sp",
    "fp-armv8sp": "fp-armv8d16sp vfp4sp",
    "fp16": "",
    "fp16fml": "fullfp16",
    "fp64": "fpregs64",
    "fpregs": "",
    "fpregs16": "fpregs",
    "fpregs64": "fpregs",
    "fullfp16": "fp-armv8d16sp fpregs16",
    "hwdiv": "",
    "hwdiv-arm": "",
    "i8mm": "neon",
    "neon": "vfp3",
    "sha2": "neon",
    "vfp2": "fp64 vfp2sp",
    "vfp2sp": "fpregs",
    "vfp3": "vfp3d16 vfp3sp",
    "vfp3d16": "vfp2 vfp3d16sp",
    "vfp3d16sp": "vfp2sp",
    "vfp3sp": "d32 vfp3d16sp",
    "vfp4": "vfp3 vfp4d16 vfp4sp",
    "vfp4d16": "vfp3d16 vfp4d16sp",
    "vfp4d16sp": "fp16 vfp3d16sp",
    "vfp4sp": "vfp3sp vfp4d16sp",
}

M_FEATURES: dict[str, str] = {
    "dsp": "",
    "fp-armv8d16": "fp-armv8d16sp vfp4d16",
    "fp-armv8d16sp": "vfp4d16sp",
    "fp16": "",
    "fp64": "fpregs64",
    "fpregs": "",
    "fpregs16": "fpregs",
    "fpregs64": "fpregs",
    "fullfp16": "fp-armv8d16sp fpregs16",
    "hwdiv": "",
    "lob": "",
    "mve": "dsp fpregs16 fpregs64",
    "mve.fp": "fullfp16 mve",
    "vfp2": "fp64 vfp2sp",
    "vfp2sp": "fpregs",
    "vfp3d16": "vfp2 vfp3d16sp",
    "vfp3d16sp": "vfp2sp",
    "vfp4d16": "vfp3d16 vfp4d16sp",
    "vfp4d16sp": "fp16 vfp3d16sp",
}

# Features that stand for register files only; their instructions belong to other features.
NOT_GENERATED: str = "fpregs fpregs16 fpregs64"
