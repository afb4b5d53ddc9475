"""From fused groups to loops: one file per schedule, and the code that schedules share."""
