"""`verify`: compare what was compiled with the model, node by node, in the order of a report:
`compiled` opens it, `reference` evaluates the model in float64 (or `onnx_runtime` does), `bounds`
says what rounding may do, `compare` finds the first node and who is at fault, `result` is what it
returns, `repeat` writes a folder that shows the fault again.
"""

from tensorkiln.verification.compare import verify
from tensorkiln.verification.reference import Difference
from tensorkiln.verification.result import NodeReport, OutputReport, Verification

__all__ = ["Difference", "NodeReport", "OutputReport", "Verification", "verify"]
