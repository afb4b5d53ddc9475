"""RISC-V processors and extensions, as LLVM 22 names them.

`CPUS_64`, `CPUS_32`: processors with the same extensions share a row, whose value lists a processor
whose extensions they include (no sign) and further ones (`+name`). `FEATURES`: what extensions
imply, those that imply the same in one row; `+d` also turns on f. Privileged extensions are left
out, since generated code does not depend on them.
"""

CPUS_64: dict[str, str] = {
    "generic-rv64": "",
    "rocket-rv64": "generic-rv64 +zicsr +zifencei",
    "sifive-s21 sifive-s51 syntacore-scr3-rv64": "rocket-rv64 +a +c +m +zaamo +zalrsc +zca +zmmul",
    (
        "andes-ax25 andes-ax45 andes-nx45 sifive-s54 sifive-u54 sifive-u74 syntacore-scr4-rv64 "
        "syntacore-scr5-rv64"
    ): "sifive-s21 +d +f",
    "sifive-s76": "andes-ax25 +zihintpause",
    "mips-p8700 sifive-p550": "andes-ax25 +zba +zbb",
    "andes-ax45mpv": (
        "andes-ax25 +v +zve32f +zve32x +zve64d +zve64f +zve64x +zvl128b +zvl32b +zvl64b"
    ),
    "veyron-v1": (
        "mips-p8700 +xventanacondops +zbc +zbs +zicbom +zicbop +zicboz +zicntr +zihintpause +zihpm"
    ),
    "xiangshan-nanhu": (
        "mips-p8700 +zbc +zbkb +zbkc +zbkx +zbs +zicbom +zicboz +zkn +zknd +zkne +zknh +zksed +zksh"
    ),
    "sifive-p450": (
        "mips-p8700 +zbs +zfhmin +zic64b +zicbom +zicbop +zicboz +ziccamoa +ziccif +zicclsm "
        "+ziccrse +zihintntl +zihintpause +zihpm +zkt"
    ),
    "sifive-x280": "andes-ax45mpv +zba +zbb +zfh +zfhmin +zvfh +zvfhmin +zvl256b +zvl512b",
    "syntacore-scr7": "andes-ax45mpv +zba +zbb +zbc +zbkb +zbkc +zbkx +zbs +zkn +zknd +zkne +zknh",
    "spacemit-x60": (
        "andes-ax45mpv +zba +zbb +zbc +zbkc +zbs +zfh +zfhmin +zic64b +zicbom +zicbop +zicboz "
        "+ziccamoa +ziccif +zicclsm +ziccrse +zicntr +zicond +zihintpause +zihpm +zkt +zvfh "
        "+zvfhmin +zvkt +zvl256b"
    ),
    "sifive-p470 sifive-p670": (
        "sifive-p450 +v +zvbb +zvbc +zve32f +zve32x +zve64d +zve64f +zve64x +zvkb +zvkg +zvkn "
        "+zvknc +zvkned +zvkng +zvknhb +zvks +zvksc +zvksed +zvksg +zvksh +zvkt +zvl128b "
        "+zvl32b +zvl64b"
    ),
    "sifive-x390": (
        "sifive-x280 +zawrs +zbs +zcb +zcmop +zfa +zfbfmin +zic64b +zicbom +zicbop +zicboz "
        "+ziccamoa +ziccif +ziccrse +zicntr +zicond +zihintntl +zihintpause +zihpm +zimop +zkr "
        "+zkt +zvbb +zvfbfmin +zvfbfwma +zvkb +zvkt +zvl1024b"
    ),
    "tt-ascalon-d8": (
        "sifive-p450 +v +zawrs +zcb +zcmop +zfa +zfbfmin +zfh +zicntr +zicond +zimop +zvbb "
        "+zvbc +zve32f +zve32x +zve64d +zve64f +zve64x +zvfbfmin +zvfbfwma +zvfh +zvfhmin "
        "+zvkb +zvkg +zvkn +zvkned +zvkng +zvknhb +zvkt +zvl128b +zvl256b +zvl32b +zvl64b"
    ),
    "xiangshan-kunminghu": (
        "syntacore-scr7 +zacas +zawrs +zcb +zcmop +zfa +zfh +zfhmin +zic64b +zicbom +zicbop "
        "+zicboz +ziccamoa +ziccif +zicclsm +ziccrse +zicntr +zicond +zihintntl +zihintpause "
        "+zihpm +zimop +zks +zksed +zksh +zkt +zvbb +zvfh +zvfhmin +zvkb +zvkt"
    ),
    "sifive-p870": (
        "sifive-p470 +zama16b +zawrs +zcb +zcmop +zfa +zfbfmin +zfh +zicntr +zicond +zimop "
        "+zkr +zvfbfmin +zvfbfwma +zvfh +zvfhmin"
    ),
}

CPUS_32: dict[str, str] = {
    "generic-rv32": "",
    "rocket-rv32": "generic-rv32 +zicsr +zifencei",
    "syntacore-scr1-base": "rocket-rv32 +c +zca",
    "sifive-e20 syntacore-scr1-max syntacore-scr3-rv32": "syntacore-scr1-base +m +zmmul",
    "syntacore-scr4-rv32": "sifive-e20 +d +f",
    "sifive-e21 sifive-e31": "sifive-e20 +a +zaamo +zalrsc",
    "sifive-e24 sifive-e34 sifive-e76": "sifive-e21 +f",
    "andes-a25 andes-a45 andes-n45 syntacore-scr5-rv32": "sifive-e24 +d",
}

FEATURES: dict[str, str] = {
    "a": "zaamo zalrsc",
    "c zcb zcmop": "zca",
    "d zfa zfbfmin zfhmin": "f",
    "f zicntr zihpm": "zicsr",
    "m": "zmmul",
    "v": "zve64d zvl128b",
    (
        "xtheadba xtheadbb xtheadbs xtheadcmo xtheadcondmov xtheadfmemidx xtheadmac "
        "xtheadmemidx xtheadmempair xtheadsync xventanacondops zaamo zalrsc zama16b zawrs zba "
        "zbb zbc zbkb zbkc zbkx zbs zca zic64b zicbom zicbop zicboz ziccamoa ziccif zicclsm "
        "ziccrse zicond zicsr zifencei zihintntl zihintpause zimop zknd zkne zknh zkr zksed "
        "zksh zkt zmmul ztso zvkt"
    ): "",
    "zabha zacas": "zaamo",
    "zcd": "d zca",
    "zfh": "zfhmin",
    "zkn": "zbkb zbkc zbkx zknd zkne zknh",
    "zks": "zbkb zbkc zbkx zksed zksh",
    "zvbb": "zvkb",
    "zvbc zvknhb": "zve64x",
    "zve32f": "f zve32x zvl32b",
    "zve32x zvl64b": "zvl32b",
    "zve64d": "d zve64f",
    "zve64f": "zve32f zve64x",
    "zve64x zvl128b": "zvl64b",
    "zvfbfmin zvfhmin": "zve32f",
    "zvfbfwma": "zfbfmin zvfbfmin",
    "zvfh": "zfhmin zvfhmin",
    "zvkb zvkg zvkned zvknha zvksed zvksh": "zve32x zvl32b",
    "zvkn": "zvkb zvkned zvknhb zvkt",
    "zvknc": "zvbc zvkn",
    "zvkng": "zvkg zvkn",
    "zvks": "zvkb zvksed zvksh zvkt",
    "zvksc": "zvbc zvks",
    "zvksg": "zvkg zvks",
    "zvl1024b": "zvl512b",
    "zvl2048b": "zvl1024b",
    "zvl256b": "zvl128b",
    "zvl32b": "zve32x",
    "zvl4096b": "zvl2048b",
    "zvl512b": "zvl256b",
}

# The code generator never emits these by itself, so a library does not depend on them.
NOT_GENERATED: str = (
    "xtheadcmo xtheadsync zama16b zcmop zic64b zicbom zicbop zicboz ziccamoa ziccif "
    "zicclsm ziccrse zicntr zicsr zifencei zihintntl zihintpause zihpm zimop zkr zkt "
    "ztso zvkt "
    # Each is several others, which are checked.
    "zkn zks zvkn zvknc zvkng zvks zvksc zvksg "
    # Of vendors: see USES.
    "xtheadba xtheadbb xtheadbs xtheadcondmov xtheadfmemidx xtheadmac xtheadmemidx xtheadmempair "
    "xventanacondops"
)

# Only programs with one of these words (of which an empty text has none) may use these features:
# Linux does not say in one way for all vendors whether a processor has an instruction of its own.
USES: dict[str, str] = {
    (
        "xtheadba xtheadbb xtheadbs xtheadcondmov xtheadfmemidx xtheadmac xtheadmemidx "
        "xtheadmempair xventanacondops"
    ): ""
}

# Where the runtime finds features on Linux: bits of AT_HWCAP, which has a letter each; the powers
# of two that a vector register has as many bits as, at least; bits of what the system call
# riscv_hwprobe says under key IMA_EXT_0, which older systems lack.
DETECTED: dict[str, str] = {
    "HWCAP": (
        "0 a, 0 zaamo, 0 zalrsc, 2 c, 2 zca, 3 d, 3 zcd, 5 f, 12 m, 12 zmmul, 21 v, 21 zve32f, "
        "21 zve32x, 21 zve64d, 21 zve64f, 21 zve64x, 21 zvl32b, 21 zvl64b, 21 zvl128b"
    ),
    "VECTOR_BITS": "8 zvl256b, 9 zvl512b, 10 zvl1024b, 11 zvl2048b, 12 zvl4096b",
    "HWPROBE": (
        "3 zba, 4 zbb, 5 zbs, 7 zbc, 8 zbkb, 9 zbkc, 10 zbkx, 11 zknd, 12 zkne, 13 zknh, 14 zksed, "
        "15 zksh, 17 zvbb, 18 zvbc, 19 zvkb, 20 zvkg, 21 zvkned, 22 zvknha, 23 zvknhb, 24 zvksed, "
        "25 zvksh, 27 zfh, 28 zfhmin, 30 zvfh, 31 zvfhmin, 32 zfa, 34 zacas, 35 zicond, 44 zcb, "
        "48 zawrs, 52 zfbfmin, 53 zvfbfmin, 54 zvfbfwma, 58 zabha"
    ),
}

# RV64GC, which every 64-bit Linux requires: the default if no processor is named.
DEFAULT_64: tuple[str, ...] = ("+m", "+a", "+f", "+d", "+c")
