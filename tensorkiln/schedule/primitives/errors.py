"""The error of a schedule that may not be applied."""

from __future__ import annotations

from tensorkiln.base.errors import UserError


class ScheduleError(UserError):
    """A primitive refused: `where` is the primitive with its loop or block."""

    code = "illegal-schedule"
