"""Transposed and dilated convolutions, in parts that sum the same taps."""
