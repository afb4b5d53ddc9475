"""What to compile for: `Target`, its kinds and options, and what is known about processors."""

from tensorkiln.target.target import Target

__all__ = ["Target"]
