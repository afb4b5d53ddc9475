"""The site: what `make docs` adds to the pages of docs/, as a hook of MkDocs (mkdocs.yml).

The pages of docs/ are readable on any host of repositories, and lead to files all over the
repository. On the site each such link leads to a page as well: of a document outside of docs/
(`MOVED`), or of a source, which is a page with its text. The front page is how the README begins.
The references of Python and C are written from the docstrings and from the headers.

    python -m release.website            the external links of the pages; nothing is fetched
    python -m release.website --fetch    asks for each of them, and fails if one does not answer
"""

from __future__ import annotations

import ast
import posixpath
import re
import sys
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FRONT_ENDS = "<!-- The front page of the site ends here. -->"
# Documents that are pages of another name on the site, where README.md would be a front page.
MOVED = {
    "README.md": "index.md",
    "docs/README.md": "pages.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "CHANGELOG.md": "project/changelog.md",
    "bench/RESULTS.md": "project/results.md",
}
# Functions of kiln_host.h that its others are made of, and programs do not call.
INTERNAL = {
    *("kiln_host_bind", "kiln_host_lacks", "kiln_host_bind_all", "kiln_host_load"),
    *("kiln_host_check_devices", "kiln_host_wrong_count", "kiln_host_check_counts"),
    *("kiln_host_pointers", "kiln_host_is_packed", "kiln_host_check_values"),
    "kiln_host_check_loaders",
}
_CODE = re.compile(r"(^(`{3,})\w*\n.*?^\2$|`[^`\n]*`|^ {4,}\S[^\n]*$|<!--.*?-->)", re.M | re.S)
_LINK = re.compile(r"(\]\()([^)\s]+)(\))")
_LANGUAGES = {".c": "c", ".h": "c", ".hpp": "cpp", ".cpp": "cpp", ".py": "python", ".rs": "rust"}
_LANGUAGES |= {".toml": "toml", ".json": "json"}


def prose(text: str, change: Callable[[str], str]) -> str:
    """A page whose text outside of code is changed."""
    parts, at = [], 0
    for code in _CODE.finditer(text):
        parts += [change(text[at : code.start()]), code[0]]
        at = code.end()
    return "".join([*parts, change(text[at:])])


def links(text: str) -> list[str]:
    """Where the links and pictures of a page lead, in order."""
    found: list[str] = []
    prose(text, lambda part: found.extend(m[2] for m in _LINK.finditer(part)) or part)
    return found


def site_path(path: str) -> str:
    """Where on the site a file of the repository is, both from their roots."""
    if path in MOVED:
        return MOVED[path]
    return path.removeprefix("docs/") if path.startswith("docs/") else f"source/{path}.md"


def relinked(text: str, origin: str, here: str) -> str:
    """A page of the repository with the links that it has at `here` on the site."""

    def lead(link: re.Match[str]) -> str:
        target, _, anchor = link[2].partition("#")
        if "://" in target or not target:
            return link[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(origin), target))
        if not (ROOT / path).exists():  # left as it is, for MkDocs to complain
            return link[0]
        new = posixpath.relpath(site_path(path), posixpath.dirname(here) or ".")
        return f"{link[1]}{new}{'#' * bool(anchor)}{anchor}{link[3]}"

    return prose(text, lambda part: _LINK.sub(lead, part))


def docs_pages() -> list[str]:
    """Pages of docs/ that are pages of the site, from docs/."""
    found = sorted(p.relative_to(ROOT / "docs").as_posix() for p in (ROOT / "docs").rglob("*.md"))
    return [name for name in found if name != "README.md"]


def made_pages() -> dict[str, str]:
    """Pages of the site that are not files of docs/, with the texts they have there."""
    texts = {f"docs/{name}": _read(f"docs/{name}") for name in docs_pages()}
    texts["docs/reference/c.md"] = c_page()
    made = {
        "reference/python.md": python_page(),
        "reference/c.md": relinked(c_page(), "docs/reference/c.md", "reference/c.md"),
    }
    for origin, here in MOVED.items():
        texts[origin] = _read(origin).partition(FRONT_ENDS)[0]
        made[here] = relinked(texts[origin], origin, here)
    for origin, text in texts.items():
        for path in _sources(origin, text):
            made[site_path(path)] = source_page(path)
    return made


def _sources(origin: str, text: str) -> Iterator[str]:
    """Files and folders outside of docs/ to which a page leads."""
    for link in links(text):
        target = link.partition("#")[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(origin), target))
        inside = path.startswith("docs/") or path in MOVED
        if target and "://" not in target and not inside and (ROOT / path).exists():
            yield path


def source_page(path: str) -> str:
    """The text of a file, or of all files in a folder, as a page."""
    place = ROOT / path
    files = [place]
    if place.is_dir():
        files = sorted(p for p in place.rglob("*") if p.is_file() and _is_source(p))
    parts = [f"# {path}\n"]
    for file in files:
        if file != place:
            parts.append(f"## {file.relative_to(place).as_posix()}\n")
        kind = _LANGUAGES.get(file.suffix, "text")
        parts.append(f"`````{kind}\n{file.read_text(encoding='utf-8').rstrip()}\n`````\n")
    return "\n".join(parts)


def _is_source(file: Path) -> bool:
    made = {"target", "build", "__pycache__"}
    return file.suffix in _LANGUAGES and not made & {*file.relative_to(ROOT).parts}


# ---- Python -----------------------------------------------------------------------------------

_PYTHON = """# Python

The public names, from their docstrings. `import tensorkiln as tk` costs little: each name is
imported when it is first used. [Call a model](../howto/call.md) and [errors](../errors.md) say
what all of them have in common. The words of scripts are [operators](../operators.md) and those
of [graphs](../graphs.md) and of [tensor programs](../tensor-programs.md); how programs are
scheduled is in [all primitives](../primitives.md).
"""


def _names(module: str) -> list[str]:
    """`__all__` of a module, or what it defines that has no underscore. Nothing is imported."""
    base = ROOT.joinpath(*module.split("."))
    file = base / "__init__.py" if base.is_dir() else base.with_suffix(".py")
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return [str(name) for name in ast.literal_eval(node.value)]
    found = (node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef))
    return [name for name in found if not name.startswith("_")]


def public_names() -> dict[str, str]:
    """Public names of the package -> `module` or `module:attribute`, as its `__init__.py` has."""
    tree = ast.parse(_read("tensorkiln/__init__.py"))
    (table,) = (
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_PUBLIC"
    )
    return dict(ast.literal_eval(table))


def python_page() -> str:
    """A directive of mkdocstrings for each public name: first those of the package."""
    names = public_names()
    parts = [_PYTHON]
    plain = {name: place for name, place in names.items() if ":" in place}
    parts += [_directive(f"tensorkiln.{n}", place.replace(":", ".")) for n, place in plain.items()]
    for module in (place for place in names.values() if ":" not in place):
        members = [name for name in _names(module) if name not in ("R", "T", "relax", "tir")]
        parts.append(f"## {module}\n")
        parts += [
            _directive(f"{module}.{name}", f"{module}.{name}", 3)
            for name in members
            if f"{module}.{name}" not in {p.replace(":", ".") for p in plain.values()}
        ]
    return "\n".join(parts)


def _directive(name: str, place: str, level: int = 2) -> str:
    return (
        f"::: {place}\n    options:\n      heading: {name}\n"
        f"      toc_label: {name.rpartition('.')[2]}\n      heading_level: {level}\n"
    )


# ---- C ----------------------------------------------------------------------------------------

_C = """# C

From the comments of the headers, which `kiln compile --headers` writes. `kiln_host.h` is for
programs that open libraries by path; what it gives access to are the functions of `kiln.h`, which
every library exports. The header of a model, with a plain function for each of the model's, is
[made for it](../howto/hosts.md#one-model-linked-in). [C, C++ and Rust](../howto/hosts.md) shows
all of them at work; for C++ there is [kiln.hpp](../../tensorkiln/hosts/kiln.hpp) on top of these,
with [kiln_tensor.hpp](../../tensorkiln/hosts/kiln_tensor.hpp) and
[kiln_value.hpp](../../tensorkiln/hosts/kiln_value.hpp), and for Rust [a
crate](../../tensorkiln/hosts/rust).
"""
_GUARDED = re.compile(r"#ifdef __cplusplus\n.*?#endif\n", re.S)
_RULE = re.compile(r"/\* -{3,} (.*?) -+$", re.M)
_NAME = (
    r"^typedef (?:struct|union) (\w+)",
    r"^enum (\w+)",
    r"^typedef [\w ]+\(\*(\w+)\)",
    r"^(?!#)(?:[\w*]+ +)+\*?(?:const )?(?!__)(\w+)\(",
    r"^#define (\w+)",
)


def header_items(text: str) -> Iterator[tuple[str, str]]:
    """(name, text) of what a header declares: comment and declaration, without bodies of functions;
    (title, comment) of a section that says something."""
    lines = [*_GUARDED.sub("", text).splitlines(), ""]
    at = 0
    while at < len(lines):
        first = at
        if lines[at].startswith("/*"):
            while not lines[at].endswith("*/"):
                at += 1
            at += 1
        comment = "\n".join(lines[first:at])
        if (rule := _RULE.match(comment)) and "\n" in comment:
            yield rule[1], comment
        first = at
        while (lines[at] and not lines[at].startswith("/*")) or not _is_outside(lines[first:at]):
            at += 1
        code = "\n".join(lines[first:at])
        at += not code and not lines[at]  # a blank line
        name = next((m[1] for p in _NAME if (m := re.search(p, code, re.M))), "")
        code = re.sub(r"\n\{\n.*", ";", code, flags=re.S) if "static inline" in code else code
        if name and not re.fullmatch(r"\w+_H", name):
            yield name, f"{comment}\n{code}".lstrip("\n")


def _is_outside(lines: list[str]) -> bool:
    """Whether as many braces are closed as were opened."""
    text = re.sub(r"'.'|\"[^\"\n]*\"", "", "\n".join(lines))
    return text.count("{") == text.count("}")


def c_page() -> str:
    """The headers for C, a heading for each thing that programs use."""
    parts = [_C]
    for folder, file in (("hosts", "kiln_host.h"), ("crt", "kiln.h"), ("crt", "kiln_system.h")):
        text = _read(f"tensorkiln/{folder}/{file}")
        head = text.partition("*/")[0].removeprefix("/* ")
        sentence = re.sub(r"\n \* ?", "\n", head).strip()
        parts.append(f"## {file}\n\n```text\n{sentence}\n```\n")
        body = text[text.index(f"#define {file.upper().replace('.', '_')}") :]
        items = [*header_items(body)]
        if file == "kiln_host.h":
            types = _read("tensorkiln/hosts/kiln_library_file.h")
            found = [*header_items(types[types.index("/* Codes of errors") :])]
            items = [
                *(row for row in found if "static inline" not in row[1] or "_dtype" in row[0]),
                *items,
            ]
        for name, declared in items:
            if name in INTERNAL or re.fullmatch(r"KILN_HOST_\w*(FUNCTIONS|MEMBER)", name):
                continue
            parts.append(f"### {name}\n\n```c\n{declared}\n```\n")
    return "\n".join(parts)


# ---- MkDocs -----------------------------------------------------------------------------------


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are made; docs/README.md is one of them."""
    from mkdocs.structure.files import File, InclusionLevel

    files.remove(files.get_file_from_path("README.md"))
    for here, text in made_pages().items():
        level = (
            InclusionLevel.NOT_IN_NAV if here.startswith("source/") else InclusionLevel.UNDEFINED
        )
        files.append(File.generated(config, here, content=text, inclusion=level))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Links of the pages of docs/; those of the others are right already."""
    here = page.file.src_uri
    return markdown if page.file.generated_by else relinked(markdown, f"docs/{here}", here)


# ---- links to other sites -----------------------------------------------------------------------


def external_links() -> dict[str, list[str]]:
    """Addresses on other sites -> the pages of the repository that lead there, both sorted."""
    found: dict[str, list[str]] = {}
    for page in (*(f"docs/{name}" for name in docs_pages()), *MOVED):
        for link in links(_read(page)):
            if "://" in link:
                found.setdefault(link, []).append(page)
    return dict(sorted(found.items()))


def _unreachable(addresses: Iterable[str]) -> Iterator[str]:
    for address in addresses:
        request = urllib.request.Request(address, headers={"User-Agent": "Mozilla/5.0"})
        try:
            urllib.request.urlopen(request, timeout=20).close()
        except (OSError, ValueError) as error:
            yield f"{address}: {error}"


def main(arguments: list[str]) -> int:
    """List the external links, or ask for each."""
    found = external_links()
    for address, pages in found.items():
        print(f"{address}  {', '.join(dict.fromkeys(pages))}")
    if arguments != ["--fetch"]:
        print(f"{len(found)} external links, none of them fetched (--fetch asks for each)")
        return 0
    dead = [*_unreachable(found)]
    print("\n".join(dead) or "all of them answer")
    return 1 if dead else 0


def _read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
