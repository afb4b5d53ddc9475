"""The products of a compile: artifacts, their container and a library's metadata, with readers that
execute nothing of what they read.
"""

from tensorkiln.artifact.artifact import (
    Artifact,
    Content,
    FileContent,
    InMemoryArtifact,
    Later,
    TextContent,
)
from tensorkiln.artifact.artifact_set import ArtifactSet
from tensorkiln.artifact.manifest import LoaderGroup

__all__ = [
    "Artifact",
    "ArtifactSet",
    "Content",
    "FileContent",
    "InMemoryArtifact",
    "Later",
    "LoaderGroup",
    "TextContent",
]
