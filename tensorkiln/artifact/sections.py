"""Sections of a compiled library that hold no code (docs/formats/library.md)."""

from __future__ import annotations

from tensorkiln.artifact.artifact_set import ArtifactSet
from tensorkiln.base.errors import UserError

METADATA = ".kiln.meta"  # JSON, padded with zeros
WEIGHTS = ".kiln.weights"
WEIGHTS_SYMBOL = "kiln_weights"  # by which code refers to the weights (crt/weights.c)
WEIGHTS_PAD = 65536  # zeros after the weights; KILN_WEIGHTS_PAD in crt.h
ARTIFACTS = ".kiln.artifacts"
ARTIFACTS_HEAD = 64  # bytes before the container: its size (8 bytes), zeros


def carried_artifacts(section: memoryview, place: str) -> ArtifactSet:
    """Return the artifacts in the bytes of section `ARTIFACTS`; their contents are views into it.

    Raises UserError (code `bad-container`, `container-version` or `bad-artifact`), naming `place`.
    """
    size = int.from_bytes(section[:8], "little")
    try:
        if size > len(section) - ARTIFACTS_HEAD or any(section[8:ARTIFACTS_HEAD]):
            raise UserError("the artifacts it carries are cut off", code="bad-container")
        return ArtifactSet.from_bytes(section[ARTIFACTS_HEAD : ARTIFACTS_HEAD + size])
    except UserError as error:
        raise UserError(error.message, code=error.code, where=place) from None
