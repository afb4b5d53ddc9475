"""32-bit Arm processors and features, as LLVM 22 names them: application and microcontroller.

`CPUS`: by architecture; processors with the same features share a row, whose value lists a
processor whose features they include (no sign) and further features (`+name`). Features that the
architecture implies, such as Thumb-2, come with the triple and are not listed. `A_FEATURES`
(application), `M_FEATURES` (microcontroller): what features imply, those that imply the same in one
row; `+mve` also turns on dsp.
"""

CPUS: dict[str, dict[str, str]] = {
    "armv6": {
        "generic": "",
        "arm1136jf-s arm1176jzf-s": "generic +fp64 +fpregs +fpregs64 +vfp2 +vfp2sp",
    },
    "armv7": {
        "generic cortex-a8": (
            "+d32 +fp64 +fpregs +fpregs64 +neon +vfp2 +vfp2sp +vfp3 +vfp3d16 +vfp3d16sp +vfp3sp"
        ),
        "cortex-a9": "generic +fp16",
        "cortex-a5": "cortex-a9 +vfp4 +vfp4d16 +vfp4d16sp +vfp4sp",
        "cortex-a12 cortex-a15 cortex-a17 cortex-a7": "cortex-a5 +hwdiv +hwdiv-arm",
        "cortex-a32 cortex-a35 cortex-a53 cortex-a57 cortex-a72 cortex-a73": (
            "cortex-a12 +aes +crc +fp-armv8 +fp-armv8d16 +fp-armv8d16sp +fp-armv8sp +sha2"
        ),
        "cortex-a55 cortex-a75": "cortex-a32 +dotprod",
        "cortex-a76 cortex-a77 cortex-a78": "cortex-a55 +fpregs16 +fullfp16",
    },
    "thumbv6m": {"generic cortex-m0 cortex-m0plus cortex-m1": ""},
    "thumbv7m": {"generic cortex-m3": "+hwdiv"},
    "thumbv7em": {
        "generic": "+dsp +hwdiv",
        "cortex-m4": "generic +fp16 +fpregs +vfp2sp +vfp3d16sp +vfp4d16sp",
        "cortex-m7": (
            "cortex-m4 +fp-armv8d16 +fp-armv8d16sp +fp64 +fpregs64 +vfp2 +vfp3d16 +vfp4d16"
        ),
    },
    "thumbv8m.base": {"generic cortex-m23": "+hwdiv"},
    "thumbv8m.main": {
        "generic": "+hwdiv",
        "cortex-m33 cortex-m35p": (
            "generic +dsp +fp-armv8d16sp +fp16 +fpregs +vfp2sp +vfp3d16sp +vfp4d16sp"
        ),
    },
    "thumbv8.1m.main": {
        "generic": "+hwdiv +lob",
        "cortex-m52 cortex-m55 cortex-m85": (
            "generic +dsp +fp-armv8d16 +fp-armv8d16sp +fp16 +fp64 +fpregs +fpregs16 +fpregs64 "
            "+fullfp16 +mve +mve.fp +vfp2 +vfp2sp +vfp3d16 +vfp3d16sp +vfp4d16 +vfp4d16sp"
        ),
    },
}

A_FEATURES: dict[str, str] = {
    "aes bf16 dotprod i8mm sha2": "neon",
    "crc d32 fp16 fpregs hwdiv hwdiv-arm": "",
    "fp-armv8": "fp-armv8d16 fp-armv8sp vfp4",
    "fp-armv8d16": "fp-armv8d16sp vfp4d16",
    "fp-armv8d16sp": "vfp4d16sp",
    "fp-armv8sp": "fp-armv8d16sp vfp4sp",
    "fp16fml": "fullfp16",
    "fp64": "fpregs64",
    "fpregs16 fpregs64 vfp2sp": "fpregs",
    "fullfp16": "fp-armv8d16sp fpregs16",
    "neon": "vfp3",
    "vfp2": "fp64 vfp2sp",
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
    "dsp fp16 fpregs hwdiv lob": "",
    "fp-armv8d16": "fp-armv8d16sp vfp4d16",
    "fp-armv8d16sp": "vfp4d16sp",
    "fp64": "fpregs64",
    "fpregs16 fpregs64 vfp2sp": "fpregs",
    "fullfp16": "fp-armv8d16sp fpregs16",
    "mve": "dsp fpregs16 fpregs64",
    "mve.fp": "fullfp16 mve",
    "vfp2": "fp64 vfp2sp",
    "vfp3d16": "vfp2 vfp3d16sp",
    "vfp3d16sp": "vfp2sp",
    "vfp4d16": "vfp3d16 vfp4d16sp",
    "vfp4d16sp": "fp16 vfp3d16sp",
}

# Features that stand for register files only; their instructions belong to other features.
NOT_GENERATED: str = "fpregs fpregs16 fpregs64"
