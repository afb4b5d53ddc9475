"""Executors by name, as the command line's `--executor` and variables of make give them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager

from tensorkiln.base.config import whole
from tensorkiln.base.errors import TensorkilnError, UserError, nearest
from tensorkiln.scale.dask import dask_executor
from tensorkiln.scale.jobs import require_executor
from tensorkiln.scale.local import local_executor, require_count
from tensorkiln.scale.ray import ray_executor

FORMS = "local, local:N, ray, ray:HOST:PORT, ray://HOST:PORT, dask or dask://HOST:PORT"
_MOST_WORKERS = 4096


def executor_of(text: str, *, cpus: int = 1) -> Executor:
    """The executor that `text` names, for a `with` statement, which gives back what it started.

    `local:N`: N processes of this machine; `local`: as many as it has CPUs for. `ray`: the cluster
    of RAY_ADDRESS, else a new one on this machine; `ray:HOST:PORT`: that cluster, joined from one
    of its machines; `ray://HOST:PORT`: that cluster, through its server for clients.
    `dask://HOST:PORT`: the cluster of that scheduler (`dask+tls://` with the certificates of Dask's
    configuration); `dask`: that of DASK_SCHEDULER_ADDRESS, else a new one on this machine.

    `cpus` are the CPUs that each job may use: on Ray, those that it asks for. An executor's
    attribute `cpus` says the same of a job of its.

    Raises UserError: code `bad-executor` for any other text, `missing-package` without Ray or Dask,
    `no-cluster` where none answers.
    """
    engine, colon, address = text.partition(":") if isinstance(text, str) else ("", "", "")
    factory = _ENGINES.get(engine)
    if factory is None or (colon and not address):
        raise _wrong(text, nearest(engine, _ENGINES))
    require_count("cpus", cpus)
    try:
        return factory(text, address, cpus)
    except (TensorkilnError, MemoryError):
        raise
    except Exception as error:  # engines have no class for it in common
        reason = str(error).strip().partition("\n")[0]
        raise UserError(
            f"no cluster answers: {type(error).__name__}: {reason:.300}",
            code="no-cluster",
            where=f"executor {text!r}",
        ) from error


Given = Executor | str | None


@contextmanager
def given_executor(argument: Given, argument_name: str = "executor") -> Iterator[Executor | None]:
    """The executor that an argument stands for: an executor itself; the one that text names, shut
    down at the end of the block; or None. UserError (code `bad-executor`) for anything else."""
    if isinstance(argument, str):
        with executor_of(argument) as executor:
            yield executor
        return
    if argument is not None:
        require_executor(argument, argument_name)
    yield argument


def _wrong(text: object, hint: str) -> UserError:
    return UserError(
        f"executor {text!r}: expected {FORMS}", code="bad-executor", where="executor", hint=hint
    )


def _local(text: str, count: str, cpus: int) -> Executor:
    try:
        return local_executor(whole(1, _MOST_WORKERS)(count) if count else None, cpus=cpus)
    except ValueError:
        raise _wrong(text, f"N is {whole(1, _MOST_WORKERS).__doc__}") from None


def _ray(text: str, address: str, cpus: int) -> Executor:
    if address.startswith("//") and not address.strip("/"):
        raise _wrong(text, "ray://HOST:PORT")
    return ray_executor(text if address.startswith("//") else address or None, num_cpus=cpus)


def _dask(text: str, address: str, cpus: int) -> Executor:
    if address and not (address.startswith("//") and address.strip("/")):
        raise _wrong(text, "dask://HOST:PORT")
    protocol = "tls" if text.startswith("dask+tls") else "tcp"
    return dask_executor(f"{protocol}:{address}" if address else None, cpus=cpus)


_ENGINES: dict[str, Callable[[str, str, int], Executor]] = {
    "local": _local,
    "ray": _ray,
    "dask": _dask,
    "dask+tls": _dask,
}
