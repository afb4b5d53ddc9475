"""The built-in inspectors."""

from __future__ import annotations

from functools import partial

from tensorkiln.inspectors import cuda, llvm, objects, signatures, text, weights
from tensorkiln.inspectors.registry import ANY, Inspector, make_inspector

# Language of a text file, as Pygments calls it -> suffixes.
SOURCES = {
    "c": ".c .h .cl",
    "cpp": ".cpp .cc .hpp .metal",
    "cuda": ".cu",
    "python": ".py",
    "gas": ".s",
    "ptx": ".ptx",
    "json": ".json",
    "": ".txt .md .map",
}
CODE = (".o", ".so", ".code")


def builtin_inspectors() -> list[Inspector]:
    """The inspectors for every kind of artifact that a compile makes, and a hexdump of any file."""
    make = partial(make_inspector, owner="tensorkiln")
    rows = [
        make("prettyprint", text.show_json, suffix=".json", language="json"),
        make("source", text.show_source, suffix=".ll", language="llvm"),
        *(
            make("source", text.show_source, suffix=suffix, language=language)
            for language, suffixes in SOURCES.items()
            for suffix in suffixes.split()
        ),
        make("ll", llvm.show_ll, suffix=".bc", language="llvm", writes=".ll"),
    ]
    for suffix in (".ll", ".bc"):
        rows += [
            make("assembly", llvm.show_assembly, suffix=suffix, language="gas"),
            make("functions", llvm.show_functions, suffix=suffix),
        ]
    for suffix in CODE:
        # The first is the default: of a whole library, the list of what is in it.
        first = make(
            "disassemble", objects.show_instructions, suffix=suffix, language="code", writes=".dis"
        )
        second = make("symbols", objects.show_symbols, suffix=suffix)
        rows += [second, first] if suffix == ".so" else [first, second]
        if suffix != ".code":
            rows.append(make("sections", objects.show_sections, suffix=suffix))
    return [
        *rows,
        make("hexdump", text.show_bytes, suffix=ANY, language="hexdump"),
        make("repr", text.show_repr, suffix=ANY, in_memory=True),
        make("weights", weights.show_weights, codegen_id="host", writes=".txt"),
        make(
            "histograms", weights.show_histograms, codegen_id="host", language="xml", writes=".svg"
        ),
        make("list-functions", signatures.list_functions, codegen_id="llvm", writes=".txt"),
        make("metrics", cuda.show_metrics, codegen_id="cuda"),
        make("print-signatures", signatures.print_signatures, loader=ANY, writes=".txt"),
    ]
