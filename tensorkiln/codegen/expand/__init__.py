"""What code generators do to a tensor program before they print it: loops unrolled, elementary
functions as programs, accesses as offsets. It is the same for every language."""
