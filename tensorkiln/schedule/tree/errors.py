"""The error of a primitive that cannot be applied."""

from __future__ import annotations

from tensorkiln.base.errors import UserError


class ScheduleError(UserError):
    """A primitive cannot be applied, or would change what the program computes. `where` is the
    primitive with its loop or block: `split('i')`."""

    code = "illegal-schedule"
