"""`tk.verify`: compare a compiled function with its model, node by node, and find the first node
that is wrong.

- `compiled` opens an Executable or a library and runs it; compiled with `debug`, it also returns
  the values between kernels.
- `reference` evaluates the model in float64, `onnx_runtime` by ONNX Runtime.
- `bounds` estimates how large the rounding errors of an operator may be: the tolerance.
- `judge` finds the first node that diverges, and whether its kernel, a graph pass, the import or
  the host is at fault.
- `compare` is the entry, `run` the arguments of one call, `result` what it returns.
- `repeat` writes a folder with a script that reproduces the fault.
"""

from tensorkiln.verification.compare import verify
from tensorkiln.verification.reference import Difference
from tensorkiln.verification.result import NodeReport, OutputReport, Verification

__all__ = ["Difference", "NodeReport", "OutputReport", "Verification", "verify"]
