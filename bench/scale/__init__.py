"""What many jobs on many machines would take: a simulation, and what it was measured with."""
