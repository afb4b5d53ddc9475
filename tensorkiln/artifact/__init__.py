"""What a compile leaves: artifacts, their container, the metadata, and readers that run nothing."""

from tensorkiln.artifact.artifact import Artifact, Content, FileContent, Later, TextContent
from tensorkiln.artifact.artifact_set import ArtifactSet

__all__ = ["Artifact", "ArtifactSet", "Content", "FileContent", "Later", "TextContent"]
