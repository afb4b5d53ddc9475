"""The version of this package; part of metadata and of the cache keys of kernels."""

VERSION = "0.1.0"
