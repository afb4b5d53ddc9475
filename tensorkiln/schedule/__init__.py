"""From fused groups to loops: one file per schedule, and what they share."""
