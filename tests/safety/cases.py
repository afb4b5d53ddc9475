"""The kinds of cases of Python callers. Each draws what it does, says it, and returns what went
wrong, or nothing."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import signal
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

import tensorkiln as tk
from tensorkiln.artifact.metadata import FunctionInfo
from tensorkiln.base.errors import InternalError, UserError
from tensorkiln.runtime import Executor, Module, Tensor, load_module
from tests.exports import LEGAL, WRONG, Exports, Lies
from tests.runtime import scalars
from tests.safety.arrays import any_array, array, bind
from tests.safety.libraries import NAMES
from tests.safety.objects import ERRORS, misbehaving
from tests.safety.oracle import wrong_result


@dataclass
class Place:
    """Where cases run: the folder of the libraries, and one of each that stays open."""

    folder: Path
    modules: dict[str, Module]
    executors: dict[str, Executor]
    say: Callable[[str], None]

    @staticmethod
    def at(folder: Path, say: Callable[[str], None]) -> Place:
        """Open all."""
        modules = {name: load_module(folder / f"{name}.so") for name in NAMES}
        return Place(folder, modules, {n: Executor(m) for n, m in modules.items()}, say)

    def fresh(self, name: str) -> Module:
        """A library that nobody else has open, so that it can be closed: a copy of the file."""
        copy = self.folder / f"{name}-{os.getpid()}.so"
        copy.write_bytes((self.folder / f"{name}.so").read_bytes())
        try:
            return load_module(copy)
        finally:
            copy.unlink()


# ---- calls --------------------------------------------------------------------------------------


def _words(value: object) -> str:
    """Short, and the same in every process."""
    if isinstance(value, tuple | list):
        return f"({', '.join(map(_words, value))})"
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{list(value.shape)}{list(value.strides)}"
    text = f"{type(value).__name__} {value!r}"[:80]
    return type(value).__name__ if " at 0x" in text else text


def _outer_arguments(info: FunctionInfo, rng: Random) -> list[Any]:
    n = rng.choice((0, 1, 2, 3, 5, 17))
    values: list[Any] = []
    for p in info.inputs:
        match p.name:
            case "c":
                values.append(array(rng, (n,), "bool"))
            case "starts" | "ends" | "axes" | "steps":
                count = rng.choice((1, 1, 2, 17))
                values.append(
                    np.array([rng.choice((0, 1, 1, -1, -(1 << 63))) for _ in range(count)])
                )
            case "boxes":
                values.append(array(rng, (1, n, 4), "float32"))
            case "scores":
                values.append(array(rng, (1, rng.choice((1, 2, 1 << 32)), n), "float32"))
            case "most" | "overlap" | "least" | "limit":
                values.append(array(rng, (), "int64" if p.name == "most" else "float32"))
            case "which":
                values.append(np.array(True))
            case "label":
                values.append(rng.choice(("", "text", "\0", "\ud800", "x" * 1000)))
            case "pair":
                values.append((any_value(rng, 2), any_value(rng, 2)))
            case _ if info.name in ("same", "ask"):
                values.append(any_value(rng, 3))
            case _ if info.name == "halve":
                values.append(array(rng, (n,), "float32"))
            case _ if info.name == "pick":
                values.append(array(rng, (n, 3), "float32"))
            case _:
                values.append(any_array(rng))
    return values


def any_value(rng: Random, depth: int) -> Any:
    """A value that an outer function may be given, or may refuse."""
    match rng.randrange(10 if depth else 8):
        case 0:
            return rng.choice((None, 0, -1, 1 << 63, 1 << 64, -(1 << 63) - 1, 1e300, float("nan")))
        case 1:
            return rng.choice(("", "text", "\ud800", b"bytes", 1j, object(), {1}, slice(2)))
        case 2:
            return lambda *a: a
        case 3:
            kind = rng.choice((">f4", "c8", "S4", "M8[s]", "i4,f4", "O", "f16"))
            return np.zeros(rng.choice(((), (2,), (0, 3))), kind)
        case 4:
            return Lies(np.ones((1, 1)), rng.choice(WRONG + LEGAL))
        case 5:
            ml_dtypes = _ml_dtypes()
            names = ("float8_e4m3fn", "int4", "bfloat16")
            return np.ones(3, getattr(ml_dtypes, rng.choice(names))) if ml_dtypes else 1
        case 6 | 7:
            return any_array(rng)
        case _:
            items = [any_value(rng, depth - 1) for _ in range(rng.randrange(4))]
            return tuple(items) if rng.random() < 0.7 else items


def _ml_dtypes() -> Any:
    try:
        import ml_dtypes
    except ImportError:
        return None
    return ml_dtypes


def arguments_for(info: FunctionInfo, rng: Random) -> list[Any]:
    """Right ones mostly, of any size."""
    if info.kind == "outer":
        return _outer_arguments(info, rng)
    sizes: dict[str, int] = {}
    huge = rng.random() < 0.25
    arguments: list[Any] = []
    for p in info.inputs:
        if p.shape is None:
            arguments.append(rng.choice(scalars.good_values(p.dtype)))
        elif info.name == "take" and p.dtype == "int64":
            arguments.append(np.zeros(bind(rng, p.shape, sizes, False), np.int64))
        else:
            arguments.append(array(rng, bind(rng, p.shape, sizes, huge), p.dtype))
    if rng.random() < 0.1 and arguments:
        arguments[rng.randrange(len(arguments))] = any_value(rng, 1)
    return arguments


def _attempt(
    call: Callable[[], Any], expected_error: BaseException | None = None
) -> tuple[Any, str]:
    """The result, and what is wrong with how it ended. `expected_error`, which somebody's own
    method raises, may come through as it is."""
    try:
        return call(), ""
    except InternalError as error:
        return None, f"InternalError: {error}"
    except UserError:
        return None, ""
    except BaseException as error:
        if expected_error is not None and expected_error in (
            error,
            error.__cause__,
            error.__context__,
        ):
            return None, ""
        return None, f"bare {type(error).__name__}: {error}"


def _choose(place: Place, rng: Random) -> tuple[str, FunctionInfo]:
    name = rng.choice(NAMES)
    return name, rng.choice(list(place.modules[name].functions.values()))


def one_call(place: Place, rng: Random) -> str:
    """Any function with any arguments; its result is NumPy's."""
    name, info = _choose(place, rng)
    arguments = arguments_for(info, rng)
    place.say(f"{name}.{info.name}({', '.join(map(_words, arguments))})")
    # A caller's array is read before the call, which may write to it.
    before = [np.array(a) if isinstance(a, np.ndarray) and a.size < 20000 else a for a in arguments]
    result, wrong = _attempt(lambda: place.executors[name][info.name](*arguments))
    if wrong or result is None or info.kind == "tensor":
        return wrong
    return wrong_result(info.name, before, result)


def objects(place: Place, rng: Random) -> str:
    """Objects that misbehave in the place of an argument; the library may be closed by them, and if
    so says it."""
    name = rng.choice(NAMES)
    module = place.fresh(name)
    executor = Executor(module)
    info = rng.choice(list(module.functions.values()))
    arguments = arguments_for(info, rng)
    index = rng.randrange(len(arguments))
    good = arguments[index] if isinstance(arguments[index], np.ndarray) else np.ones(3, np.float32)
    call_arguments = [
        np.array(a) if isinstance(a, np.ndarray) and a.size < 1e5 else a for a in arguments
    ]

    def call() -> object:
        return _attempt(lambda: executor[info.name](*call_arguments))

    def close() -> object:
        return _attempt(module.close)

    arguments[index], error, words = misbehaving(rng, good, call, close)
    place.say(f"{name}.{info.name}, argument {index}: {words}")
    wrong = _attempt(lambda: executor[info.name](*arguments), error)[1]
    arguments.clear()
    error.__traceback__ = None  # its frames have values
    return wrong or _closes(module)


def _closes(module: Module) -> str:
    """Once nobody has a value of it, a library can be closed."""
    gc.collect()
    try:
        module.close()
    except UserError as error:
        return f"cannot be closed: {error}"
    return ""


# ---- closing ------------------------------------------------------------------------------------


def closing(place: Place, rng: Random) -> str:
    """Closed by another thread, at any point of the calls of this one; then all is refused."""
    name = rng.choice(NAMES)
    module = place.fresh(name)
    executor = Executor(module)
    infos = [rng.choice(list(module.functions.values())) for _ in range(50)]
    calls = [(info.name, arguments_for(info, rng)) for info in infos]
    delay = rng.random() * 0.004
    place.say(
        f"{name} closed by another thread after {delay:.4f} s of calls: "
        f"{', '.join(name for name, _ in calls[:6])}..."
    )

    def close() -> None:
        threading.Event().wait(delay)
        with contextlib.suppress(UserError):  # in use: it stays open
            module.close()

    closer = threading.Thread(target=close)
    closer.start()
    wrong = ""
    for function, arguments in calls:
        problem = _attempt(lambda f=function, a=arguments: executor[f](*a))[1]  # type: ignore[misc]
        wrong = wrong or problem
    closer.join()
    return wrong or _closes(module)


def callbacks(place: Place, rng: Random) -> str:
    """A function of the host that raises, gives nonsense, calls back, closes."""
    module = place.fresh("outers")
    executor = Executor(module)
    deed, error, answer = rng.randrange(5), rng.choice(ERRORS)("raised"), any_value(rng, 2)
    place.say(f"callback {deed} {error!r} {_words(answer)}")

    def host(x: Any) -> Any:
        if deed == 0:
            raise error
        if deed == 1:
            _attempt(module.close)
        if deed == 2:
            executor["ask"](x) if len(stack) < 50 and not stack.append(1) else None
        if deed == 3:
            tk.runtime.unregister_function("safety.host")
        return answer

    stack: list[int] = []
    tk.runtime.register_function("safety.host", host)
    wrong = _attempt(lambda: executor["ask"](any_value(rng, 2)), error)[1]
    error.__traceback__ = None  # its frames have values
    with contextlib.suppress(UserError):
        tk.runtime.unregister_function("safety.host")
    return wrong or _closes(module)


def results(place: Place, rng: Random) -> str:
    """Values that come back: whatever they are, nothing of the library stays behind."""
    module = place.fresh("outers")
    executor = Executor(module)
    value = any_value(rng, 3)
    place.say(f"same({_words(value)})")
    result_value, wrong = _attempt(lambda: executor["same"](value))
    if callable(result_value):
        wrong = _attempt(partial(result_value, 1, "text"))[1]
    result_value = None
    return wrong or _closes(module)


def states(place: Place, rng: Random) -> str:
    """set_input, set_output, invoke and get_outputs in any order."""
    name, info = _choose(place, rng)
    executor, steps = Executor(place.modules[name]), []
    wrong = ""
    for _ in range(8):
        step = rng.choice(("set_input", "set_output", "invoke", "invoke", "get_outputs"))
        arguments: list[Any] = []
        if step == "set_input":
            arguments = arguments_for(info, rng)
        elif step == "set_output":
            arguments = [
                rng.choice((0, 1, -1, 1 << 70, 1.5, None)),
                rng.choice((None, any_array(rng), Tensor(np.ones(3)), 7)),
            ]
        steps.append(step)
        place.say(f"{name}.{info.name}: {' '.join(steps)}({', '.join(map(_words, arguments))})")
        method = getattr(executor, step)
        problem = _attempt(lambda m=method, a=arguments: m(info.name, *a))[1]  # type: ignore[misc]
        wrong = wrong or problem
    return wrong


# ---- processes and threads ----------------------------------------------------------------------


def forking(place: Place, rng: Random) -> str:
    """Children of a process whose threads call: they call, and end."""
    over, ones_vector = threading.Event(), np.ones(2, np.int8)
    name, info = _choose(place, rng)
    arguments = arguments_for(info, rng)
    place.say(f"forks beside {name}.{info.name}({', '.join(map(_words, arguments))})")

    def work() -> None:
        while not over.is_set():
            _attempt(lambda: place.executors[name][info.name](*arguments))
            _attempt(
                lambda: place.modules["graphs"]["copy_int8"](ones_vector, ones_vector.copy(), 1)
            )

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    wrong = ""
    for k in range(10):
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(10)
            _attempt(lambda: Executor(place.modules[name])[info.name](*arguments))
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        if status:
            wrong = f"child {k} ended with {status}"
            break
    over.set()
    for thread in threads:
        thread.join()
    return wrong


def threads_that_end(place: Place, rng: Random) -> str:
    """Many short threads on shared executors."""
    wrong: list[str] = []
    todo = [(n, i.name, arguments_for(i, rng)) for n, i in (_choose(place, rng) for _ in range(40))]
    place.say(f"40 threads: {', '.join(f for _, f, _ in todo[:8])}...")

    def run(name: str, function: str, arguments: list[Any]) -> None:
        for _ in range(5):
            problem = _attempt(lambda: place.executors[name][function](*arguments))[1]
            if problem:
                wrong.append(f"{function}: {problem}")

    all_ = [threading.Thread(target=run, args=row) for row in todo]
    for thread in all_:
        thread.start()
    for thread in all_:
        thread.join()
    return wrong[0] if wrong else ""


def flat_memory(place: Place, rng: Random) -> str:
    """The same call, right or wrong, again and again."""
    name, info = _choose(place, rng)
    arguments = arguments_for(info, rng)
    if sum(a.size for a in arguments if isinstance(a, np.ndarray)) > 1 << 16:
        return ""
    place.say(f"800 times {name}.{info.name}({', '.join(map(_words, arguments))})")
    function, resident_sizes = place.executors[name][info.name], []
    for k in range(800):
        _attempt(lambda: function(*arguments))
        if k in (399, 799):
            gc.collect()
            resident_sizes.append(_resident())
    grown = resident_sizes[1] - resident_sizes[0]
    return f"{grown} KiB more after 400 calls" if grown > 2048 else ""


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() >> 10


def lifetimes(place: Place, rng: Random) -> str:
    """Opened, called, dropped without closing, in any order of what refers to what."""
    module = place.fresh(rng.choice(NAMES))
    executor = Executor(module)
    info = rng.choice(list(module.functions.values()))
    arguments = arguments_for(info, rng)
    place.say(f"dropped: {module.path.name} {info.name}({', '.join(map(_words, arguments))})")
    result, wrong = _attempt(partial(executor[info.name], *arguments))
    references = [module, executor, result, Exports(executor[info.name])]
    library_ref = weakref.ref(module.library)
    del module, executor, result
    rng.shuffle(references)
    while references:
        references.pop()
        gc.collect()
    arguments.clear()
    return wrong or ("the library stays in memory" if library_ref() is not None else "")


KINDS: dict[str, tuple[int, Callable[[Place, Random], str]]] = {
    "call": (50, one_call),
    "objects": (25, objects),
    "results": (8, results),
    "callbacks": (8, callbacks),
    "states": (8, states),
    "closing": (4, closing),
    "lifetimes": (4, lifetimes),
    "ends": (1, threads_that_end),
    "forking": (2, forking),
    "flat": (2, flat_memory),
}
