"""Plain loops: every group that no other family computes."""
