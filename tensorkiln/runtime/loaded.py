"""`load("model.so")` and what it returns: functions that take arrays of NumPy and tensors of torch,
and return what the caller works with.

Values are converted here and nowhere below: everything below shares memory. Values without an
element type get that of the parameter. Results become NumPy arrays, or torch tensors if torch
tensors came in.
"""

from __future__ import annotations

import inspect
import keyword
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorkiln.artifact.metadata import FunctionInfo, ParamInfo
from tensorkiln.base.element_types import PARAMETER_TYPES, program_type
from tensorkiln.base.errors import UnsupportedError, UserError
from tensorkiln.base.text import listed
from tensorkiln.runtime.actual_types import is_a
from tensorkiln.runtime.arguments import in_order, show, wrong_count
from tensorkiln.runtime.device import CUDA, Devices
from tensorkiln.runtime.device_tensor import DeviceTensor
from tensorkiln.runtime.failures import ArgumentTypeError, ArgumentValueError
from tensorkiln.runtime.load import load_module
from tensorkiln.runtime.module import Executor, Module
from tensorkiln.runtime.tensor import Array, Tensor, dtype_named, is_byte_wise

if TYPE_CHECKING:
    from tensorkiln.runtime.tensor_function import TensorFunction


class Outputs(tuple):  # type: ignore[type-arg]
    """Several results of a call, in order and by name: `y[0]`, `y["logits"]`, `logits, boxes = y`.

    `names` are the outputs' names, and `asdict()` is a dictionary.
    """

    names: tuple[str, ...]

    def __new__(cls, values: Sequence[Any], names: Sequence[str]) -> Outputs:
        """Results and their names, one for each."""
        outputs = super().__new__(cls, values)
        outputs.names = tuple(names)
        return outputs

    def __getnewargs__(self) -> tuple[Any, ...]:
        """What copies and pickles are made from."""
        return (tuple(self), self.names)

    def __getitem__(self, key: Any) -> Any:
        """A result by its number or name, or a slice as a tuple. KeyError for an unknown name."""
        if isinstance(key, str):
            if key not in self.names:
                raise KeyError(f"no output {key!r}; there are {', '.join(self.names)}")
            key = self.names.index(key)
        return super().__getitem__(key)

    def asdict(self) -> dict[str, Any]:
        """The results by name."""
        return dict(zip(self.names, self, strict=True))

    def __repr__(self) -> str:
        """Names and values."""
        values = (f"{n}={v!r}" for n, v in zip(self.names, self, strict=True))
        return f"Outputs({', '.join(values)})"


# ---- arguments -----------------------------------------------------------------------------------


def given_value(value: Any, param: ParamInfo, label: str) -> Any:
    """`value` as something that a function of a library takes: what has an element type as it is;
    numbers and lists as an array of the parameter's type; images, data frames, buffers and other
    things that NumPy reads as the array that NumPy makes of them.

    Raises ArgumentTypeError for numbers that the parameter's type cannot hold (a fraction for an
    integer, an integer for a bool), and for what NumPy does not read as numbers; ArgumentValueError
    for lists whose rows differ in length, and integers out of the type's range.
    """
    if type(value) is np.ndarray or hasattr(value, "__dlpack__") or is_a(value, np.generic):
        return value
    if value is None or is_a(value, str, bytes, Mapping, set) or param.shape is None:
        return value  # the call names what it expects
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ArgumentValueError(
            f"{label}: NumPy makes no array of this {type(value).__name__}: {error}",
            code="shape-mismatch",
        ) from error
    if not is_a(value, list, tuple, bool, int, float):
        return value if array.dtype == object else array
    return _typed(array, param, f"{label}, a {type(value).__name__}")


def _typed(array: Array, param: ParamInfo, label: str) -> Array:
    """Numbers of Python as an array of the parameter's type; see `given_value`."""
    dtype = dtype_named(param.dtype)
    if array.dtype == dtype:
        return array
    ranks = {"b": 0, "u": 1, "i": 1, "f": 2}
    have = ranks.get(array.dtype.kind, 3)
    row = PARAMETER_TYPES.get(param.dtype)
    whole = row is not None and row.is_integer
    if array.size and have > (1 if whole else ranks.get(dtype.kind, 2)):
        raise ArgumentTypeError(
            f"{label}, holds {array.dtype.name} and must hold {param.dtype}", code="dtype-mismatch"
        )
    if have == 1 and row is not None and row.is_integer and array.size:
        lower, upper = row.limits
        if int(array.min()) < lower or int(array.max()) > upper:
            raise ArgumentValueError(
                f"{label}, holds numbers beyond {param.dtype}, {lower} to {upper}",
                code="out-of-range",
            )
    return array.astype(dtype)


def _torch() -> Any:
    """The torch that the caller has imported, or None."""
    return sys.modules.get("torch")


def _holds_torch(values: Sequence[Any]) -> bool:
    torch = _torch()
    kind = getattr(torch, "Tensor", None)
    return kind is not None and any(isinstance(v, kind) for v in values)


# ---- results -------------------------------------------------------------------------------------


def as_numpy(value: Any) -> Any:
    """A result as NumPy's array, without a copy, also within tuples; other results as they are, as
    are tensors on devices, which the model itself leaves there."""
    if type(value) is Tensor:
        return value.numpy()
    return tuple(map(as_numpy, value)) if type(value) is tuple else value


def as_torch(value: Any) -> Any:
    """A result as a torch tensor that shares its memory, also within tuples. A tensor on a device
    other than CUDA's, of which torch knows nothing, stays as it is."""
    if type(value) is tuple:
        return tuple(map(as_torch, value))
    torch = _torch()
    if isinstance(value, DeviceTensor):
        return torch.from_dlpack(value) if value.device.dlpack_type == CUDA else value
    if type(value) is not Tensor:
        return value
    array = value.numpy()
    if array.dtype.isbuiltin == 1:
        return torch.from_numpy(array)
    # NumPy exports no others, such as bfloat16: as bytes, which torch reads as its own type.
    if is_byte_wise(array.dtype.name):  # torch packs this type, or lacks it
        return torch.from_numpy(array.view(program_type(array.dtype.name)))
    kind = getattr(torch, array.dtype.name, None)
    if kind is None:
        raise UnsupportedError(f"torch has no type for {array.dtype.name}")
    whole = np.ascontiguousarray(array).reshape(-1).view(f"u{array.dtype.itemsize}")
    return torch.from_numpy(whole).view(kind).reshape(array.shape)


# ---- functions -----------------------------------------------------------------------------------


class LoadedFunction:
    """A function of a library on the devices of an Executor: `f(x)`, `f(image=x)`, `f({...})`.

    Takes tensors of NumPy and torch and all that exchange memory by DLPack, without a copy; lists
    and numbers of Python; and whatever NumPy reads. Returns NumPy arrays, or torch tensors if a
    torch tensor was passed: one, or `Outputs` for several, which have names. `out=` (a tensor, or
    one for each output) is filled and returned. Several threads may call it at once.

    A function with control flow takes and returns numbers, strings and tuples as well. A tensor
    program writes into what it is given and returns None.
    """

    def __init__(self, executor: Executor, info: FunctionInfo):
        self.executor = executor
        self.info = info
        self.name = info.name
        self._limited: dict[int, LoadedFunction] = {}
        self._function: Callable[..., Any] | TensorFunction = executor[info.name]
        self._names = tuple(p.name for p in info.outputs)
        on_host = not any(p.device for p in (*info.inputs, *info.outputs))
        self._is_plain = info.kind == "graph" and len(info.outputs) == 1 and on_host
        self.__doc__ = described(info)

    @property
    def inputs(self) -> tuple[ParamInfo, ...]:
        """Name, type and shape of each input."""
        return self.info.inputs

    @property
    def outputs(self) -> tuple[ParamInfo, ...]:
        """Name, type and shape of each output."""
        return self.info.outputs

    @property
    def __signature__(self) -> inspect.Signature:
        """The inputs by name, with types and shapes, for `inspect.signature`, help and editors."""
        return signature_of(self.info)

    def __call__(self, /, *arguments: Any, out: Any = None, **named: Any) -> Any:
        """Run on inputs by position, by name, or as one dictionary of all.

        Raises ArgumentTypeError and ArgumentValueError, which name the input, what was expected and
        what was received.
        """
        info = self.info
        if self._is_plain and out is None and not named and len(arguments) == len(info.inputs):
            for v in arguments:
                if type(v) is not np.ndarray:
                    break
            else:  # the most common call takes the shortest path
                only: Any = self._function(*arguments)
                return only._array
        first: Any = arguments[0] if len(arguments) == 1 else None
        if is_a(first, Mapping):
            arguments, named = (), _merged(info, first, named)
        if named:
            arguments = in_order(info, arguments, named)
        elif len(arguments) != len(info.inputs):
            raise wrong_count(info, len(arguments))
        if info.kind == "tensor":
            if out is not None:
                raise ArgumentTypeError(
                    f"{info.name} is a tensor program: its outputs are among its inputs, not `out`",
                    code="argument-kind",
                )
            return self._function(*arguments)
        values = [
            v if type(v) is np.ndarray else given_value(v, p, f"{info.name}: input {p.name!r}")
            for v, p in zip(arguments, info.inputs, strict=True)
        ]
        if out is not None:
            return self._function(*values, out=out)
        result = self._function(*values)
        outputs: Any = as_torch(result) if _holds_torch(arguments) else as_numpy(result)
        if type(outputs) is tuple and len(outputs) == len(self._names):
            return Outputs(outputs, self._names)
        return outputs

    def with_threads(self, threads: int) -> LoadedFunction:
        """This function, with calls that use at most `threads` threads, the calling one included:
        `f.with_threads(1)(x)`. 0 means the library's own number. Calls of this object are not
        affected. Each number of threads has an Executor with memory of its own, which is made at
        the first request and kept.

        Raises UnsupportedError for a tensor program, which runs outside of executors.
        """
        _require_executor(self.info)
        executor = self.executor.with_threads(threads)
        count = int(threads)
        function = self._limited.get(count)
        if function is None:
            function = self._limited.setdefault(count, LoadedFunction(executor, self.info))
        return function

    def __repr__(self) -> str:
        """Name, inputs and outputs."""
        return f"<{self.info.kind} function {signature_text(self.info)}>"


def _require_executor(info: FunctionInfo) -> None:
    if info.kind == "tensor":
        raise UnsupportedError(
            f"{info.name} is a tensor program: it runs with its library's number of threads",
            where="with_threads",
            hint="module.set_num_threads(n), of all calls of the library",
        )


def _merged(
    info: FunctionInfo, mapping: Mapping[Any, Any], named: dict[str, Any]
) -> dict[str, Any]:
    twice = [name for name in mapping if name in named]
    if twice:
        raise ArgumentTypeError(
            f"{info.name}: input {twice[0]!r} is given twice", code="argument-count"
        )
    wrong = [key for key in mapping if not is_a(key, str)]
    if wrong:
        raise ArgumentTypeError(
            f"{info.name}: the names of inputs are strings, received {wrong[0]!r:.80}",
            code="argument-kind",
        )
    return {**mapping, **named}


# ---- how functions are shown ---------------------------------------------------------------------


def signature_text(info: FunctionInfo) -> str:
    """`main(x: float32 [n, 3]) -> y: float32 [n]`."""
    inputs = listed(map(show, info.inputs), 8)
    results = listed(map(show, info.outputs), 8)
    return f"{info.name}({inputs})" + (f" -> {results}" if results else "")


def described(info: FunctionInfo) -> str:
    """The docstring of a function: its inputs and outputs, a line each."""
    lines = [f"{info.name}{signature_of(info)}"]
    for title, params in (("Inputs", info.inputs), ("Outputs", info.outputs)):
        if params:
            lines += ["", f"{title}:", *(f"    {show(p)}" for p in params)]
    lines += ["", *(f"Requires {r}." for r in info.requires)]
    return "\n".join(lines).rstrip()


def signature_of(info: FunctionInfo) -> inspect.Signature:
    """A function's signature. Inputs whose names are not identifiers of Python, or its keywords,
    which only a dictionary can name, or that have one name, make all of them positional."""
    names = [p.name for p in info.inputs]
    plain = len(set(names)) == len(names) and all(
        name.isidentifier() and not keyword.iskeyword(name) and name != "out" for name in names
    )
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD if plain else inspect.Parameter.POSITIONAL_ONLY
    parameters = [
        inspect.Parameter(p.name if plain else f"input{i}", kind, annotation=_type_text(p))
        for i, p in enumerate(info.inputs)
    ]
    if info.kind == "tensor":
        return inspect.Signature(parameters, return_annotation=None)
    parameters.append(inspect.Parameter("out", inspect.Parameter.KEYWORD_ONLY, default=None))
    results = [_type_text(p) for p in info.outputs]
    returned = results[0] if len(results) == 1 else f"Outputs({', '.join(results)})"
    return inspect.Signature(parameters, return_annotation=returned)


def _type_text(param: ParamInfo) -> str:
    return f"{param.dtype}{param.shape_text}"


# ---- libraries -----------------------------------------------------------------------------------


class LoadedModel:
    """A library that is ready to be called: `f = tk.load("model.so")`, then `y = f(x)`.

    `f(...)` calls its entry: the function `main`, else the only one. `f["encode"]` is another
    function. Arguments and results are those of LoadedFunction. The memory for intermediate results
    is kept between calls; several threads may call at once, and each call running at a time has its
    own. A pickle holds the path of the library, not its contents.
    """

    def __init__(self, module: Module, executor: Executor, options: Mapping[str, Any] | None):
        self.module = module
        self.executor = executor
        # Arguments of `load`, for pickles; None if the library is not in a file of the caller's.
        self._options = options
        self._functions: dict[str, LoadedFunction] = {}
        self._entry: LoadedFunction | None = None
        self._num_threads = 0
        self._limited: dict[int, LoadedModel] = {}
        self._is_limited = False  # made by `with_threads`
        entry = entry_of(self.functions)
        if entry is not None:
            self.__doc__ = described(self.functions[entry])

    @property
    def functions(self) -> Mapping[str, FunctionInfo]:
        """All functions by name, with their inputs and outputs."""
        return self.module.functions

    @property
    def entry(self) -> str:
        """The function that a call of this object calls: `main`, else the only one. Raises
        UserError (code `no-entry`) where there are several and none is `main`."""
        return required_entry(self.functions, "f")

    @property
    def inputs(self) -> tuple[ParamInfo, ...]:
        """Name, type and shape of each input of the entry."""
        return self.functions[self.entry].inputs

    @property
    def outputs(self) -> tuple[ParamInfo, ...]:
        """Name, type and shape of each output of the entry."""
        return self.functions[self.entry].outputs

    @property
    def __signature__(self) -> inspect.Signature:
        """That of the entry."""
        return signature_of(self.functions[self.entry])

    @property
    def num_threads(self) -> int:
        """The threads that a call may use, the calling one included. Assigning 0 restores the
        library's own number: that of the processors that this process may use."""
        return self._num_threads or self.module.num_threads

    @num_threads.setter
    def num_threads(self, threads: int) -> None:
        self.executor.set_num_threads(threads)
        self._num_threads = threads

    def with_threads(self, threads: int) -> LoadedModel:
        """The same functions, with calls that use at most `threads` threads, the calling one
        included: `f.with_threads(1)(x)`. 0 means the library's own number. Calls of this object are
        not affected, and both may be called at once. Each number of threads has an Executor with
        memory of its own, which is made at the first request and kept. Tensor programs, which run
        outside of executors, then raise UnsupportedError."""
        executor = self.executor.with_threads(threads)
        count = int(threads)
        model = self._limited.get(count)
        if model is None:
            options = None if self._options is None else {**self._options, "num_threads": count}
            limited_model = LoadedModel(self.module, executor, options)
            limited_model._is_limited = True
            model = self._limited.setdefault(count, limited_model)
        model._num_threads = count
        return model

    def __getitem__(self, name: str) -> LoadedFunction:
        """A function by name; FunctionLookupError with the nearest name for an unknown one."""
        function = self._functions.get(name) if is_a(name, str) else None
        if function is None:
            if self._is_limited:
                _require_executor(self.module.info(name))
            function = LoadedFunction(self.executor, self.module.info(name))
            self._functions[name] = function
        return function

    def __contains__(self, name: object) -> bool:
        """Whether the library has a function of that name."""
        return name in self.module

    def __iter__(self) -> Iterator[str]:
        """The names of the functions."""
        return iter(self.functions)

    def __call__(self, /, *arguments: Any, **named: Any) -> Any:
        """Call the entry; see LoadedFunction."""
        if self._entry is None:
            self._entry = self[self.entry]
        return self._entry(*arguments, **named)

    def close(self, *, wait: bool = False) -> None:
        """Unload the library; see `Module.close`."""
        self.module.close(wait=wait)

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickle loads the library from its path. Raises UnsupportedError for one that has none
        to be kept: what `compile` made and nobody exported."""
        if self._options is None:
            raise UnsupportedError(
                "this library is a temporary one, and cannot be pickled",
                hint="export_library writes a file; tk.load loads it in each process",
            )
        return (_load_again, (str(self.module.path.absolute()), dict(self._options)))

    def __repr__(self) -> str:
        """File and signature."""
        name = entry_of(self.functions)
        summary = signature_text(self.functions[name]) if name else listed(self.functions, 8)
        return f"<LoadedModel {self.module.path.name!r}: {summary}>"

    def _repr_html_(self) -> str:
        """A table for notebooks."""
        path, meta = self.module.path, self.module.metadata
        size = path.stat().st_size if path.is_file() else 0
        kernels, weights = meta.get("kernels"), meta.get("weights_bytes")
        rows = [
            ("target", target_text(meta.get("target"))),
            ("kernels", str(len(kernels)) if isinstance(kernels, list) else ""),
            ("weights", _bytes_text(weights) if isinstance(weights, int) else ""),
            ("library", f"{size:,} bytes" if size else ""),
            ("threads", str(self.num_threads)),
        ]
        return html_table(path.name, tuple(self.functions.values()), rows)


def entry_of(functions: Mapping[str, FunctionInfo]) -> str | None:
    """`main`, else the only function; None where there is no such function."""
    if "main" in functions:
        return "main"
    return next(iter(functions)) if len(functions) == 1 else None


def required_entry(functions: Mapping[str, FunctionInfo], name: str) -> str:
    """As `entry_of`, but raises UserError (code `no-entry`) if there is no entry. The hint shows a
    call of a function of `name`."""
    entry = entry_of(functions)
    if entry is None:
        names = list(functions)
        raise UserError(
            f"expected a function 'main' or only one function, received {', '.join(names)}",
            code="no-entry",
            hint=f"call one of them: {name}[{names[0]!r}](...)" if names else "",
        )
    return entry


_MOST_ROWS, _MOST_WHOLE = (
    50,
    8,
)  # functions in a notebook's table: listed, and with their parameters


def target_text(target: Any) -> str:
    """A target's tag or processors, of metadata."""
    if not isinstance(target, Mapping):
        return ""
    if isinstance(processors := target.get("mcpu"), list) and not target.get("tag"):
        return ", ".join(map(str, processors))
    return str(target.get("tag") or target.get("mcpu") or target.get("kind") or "")


def html_table(
    title: str, functions: Sequence[FunctionInfo], rows: Sequence[tuple[str, str]]
) -> str:
    """A table for notebooks: the inputs, outputs and memory of functions, and further rows."""
    cells = list[tuple[str, str]]()
    for f in functions[:_MOST_ROWS]:
        cells.append((f.name, f"{f.kind}, {f.kernel_calls} kernel call(s)"))
        if len(functions) > _MOST_WHOLE:
            continue
        cells += [(f"{f.name}: input", show(p)) for p in f.inputs]
        cells += [(f"{f.name}: output", show(p)) for p in f.outputs]
        cells.append((f"{f.name}: workspace", _bytes_text(f.workspace_bytes)))
    if len(functions) > _MOST_ROWS:
        cells.append(("...", f"{len(functions) - _MOST_ROWS} more functions"))
    cells += [(name, text) for name, text in rows if text]
    body = "".join(f"<tr><th>{escape(n)}</th><td>{escape(w)}</td></tr>" for n, w in cells)
    return f"<table><caption>{escape(title)}</caption>{body}</table>"


def _bytes_text(size: int | str) -> str:
    return f"{size:,} bytes" if isinstance(size, int) else f"{size} bytes"


def _load_again(path: str, options: dict[str, Any]) -> LoadedModel:
    """What a pickle of a LoadedModel calls."""
    return load(path, **options)


def load(
    path: str | Path,
    devices: Devices = None,
    *,
    fallback: Devices = None,
    num_threads: int | None = None,
    verify: bool = False,
    sha256: str | None = None,
) -> LoadedModel:
    """Load a compiled library; what is returned is called with arrays: `tk.load("net.so")(x)`.

    `devices` run its code (None: the first of each kind that it needs), and `fallback` names those
    that take the place of one that cannot be had, as for Executor. `num_threads` are those of a
    call; None or 0: as many as this process has processors. `verify` compares all weights with
    their hash; `sha256`, the SHA-256 of the file as 64 hexadecimal digits, is compared before any
    code of the library runs, and its weights after it, wherever they are.

    Raises the errors of `load_module` and Executor, and UserError (code `bad-hash`) for another
    file than that of `sha256`.
    """
    module = load_module(path, devices, fallback=fallback, verify=verify, sha256=sha256)
    options = {
        "devices": devices,
        "fallback": fallback,
        "num_threads": num_threads,
        "verify": verify,
        "sha256": sha256,
    }
    model = LoadedModel(module, module.create_executor(), options)
    if num_threads is not None:
        model.num_threads = num_threads
    return model
