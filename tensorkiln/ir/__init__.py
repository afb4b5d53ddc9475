"""The two IR levels: tensor programs (`expr`, `buffer`, `stmt`) and graphs (`relax`)."""

from tensorkiln.ir.text.scripted import Scripted


def _printed(node: object) -> str:
    from tensorkiln.ir.text.printer import print_any  # here, as only few programs print

    return print_any(node)


Scripted.printer = _printed
