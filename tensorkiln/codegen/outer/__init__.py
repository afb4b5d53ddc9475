"""Functions that a call plan cannot express, such as those with control flow, as C."""
