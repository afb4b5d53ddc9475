"""Names in C: identifiers of texts, what no name may be, and scopes in which names are unique."""

from __future__ import annotations

import re

from tensorkiln.base.errors import UserError

# Words of C and C++, and macros of their common headers and of compilers' own.
_KEYWORD_TEXT = (
    "auto break case char const continue default do double else enum extern float for goto if "
    "inline int long register restrict return short signed sizeof static struct switch typedef "
    "union unsigned void volatile while _Bool _Complex _Imaginary "
    "data symbol scalar NULL bool class new delete this template private public protected "
    "namespace operator using try catch throw true false typename virtual friend "
    "alignas alignof and and_eq asm bitand bitor char8_t char16_t char32_t co_await co_return "
    "co_yield compl concept consteval constexpr constinit const_cast decltype dynamic_cast "
    "explicit export mutable noexcept not not_eq nullptr or or_eq reinterpret_cast requires "
    "static_assert static_cast thread_local typeid typeof wchar_t xor xor_eq "
    "assert errno stdin stdout stderr I linux unix complex imaginary noreturn "
    "cdecl far interface near small"
)
_KEYWORDS = frozenset(_KEYWORD_TEXT.split(" "))

# Names of types in C's headers and POSIX's, of macros by the custom of both, and those that
# compilers keep. One capital letter is nearly always a dimension.
_OF_HEADERS = re.compile(r"\w+_t|[A-Z][A-Z0-9_]+|_[A-Z_]\w*")


def c_name(text: str) -> str:
    """`text` as a C identifier: `a.b` becomes `a_b`, and `1x` becomes `_1x`."""
    name = re.sub(r"\W", "_", text, flags=re.ASCII)
    return f"_{name}" if not name or name[0].isdigit() else name


def library_name(text: str) -> str:
    """`text` as a library's name, with which its C functions begin: not `kiln`, since those of the
    runtime do."""
    name = c_name(text)
    return f"{name}_" if name == "kiln" else name


def is_of_headers(name: str) -> bool:
    """Whether a header or the compiler may have made `name` a type or a macro, so that no parameter
    or variable of generated C may be called so: `int64_t`, `INT64_MAX`, `KILN_API`, `_Float16`."""
    return _OF_HEADERS.fullmatch(name) is not None


def plain_name(text: str) -> str:
    """`text` as a name of C and C++: `a.b` becomes `a_b`, `new` becomes `new_`, and what a header
    may have defined, such as `INT64_MAX`, `INT64_MAX_`."""
    name = c_name(text)
    return f"{name}_" if name in _KEYWORDS or is_of_headers(name) else name


class Names:
    """Names in one scope of C and what has each. A name that two things would have is an error:
    which of them got it would depend on their order."""

    def __init__(self, scope: str) -> None:
        self._scope = scope
        self._owners: dict[str, str] = {}

    def add(self, name: str, owner: str) -> str:
        """Return `name`. Raises UserError (code `name-clash`) naming both owners if it is taken."""
        first = self._owners.setdefault(name, owner)
        if first != owner:
            raise UserError(
                f"{first} and {owner} would both be {name!r} in {self._scope}",
                code="name-clash",
                hint="rename one of them in the model",
            )
        return name
