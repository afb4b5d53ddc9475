"""What a compile leaves: artifacts, their container, the metadata, and readers that run nothing."""

from tensorkiln.artifact.artifact import (
    Artifact,
    Content,
    FileContent,
    InMemoryArtifact,
    Later,
    TextContent,
)
from tensorkiln.artifact.artifact_set import ArtifactSet, Group

__all__ = [
    "Artifact",
    "ArtifactSet",
    "Content",
    "FileContent",
    "Group",
    "InMemoryArtifact",
    "Later",
    "TextContent",
]
