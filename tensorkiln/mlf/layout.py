"""Where things lie in an archive in Model Library Format."""

from __future__ import annotations

from tensorkiln.artifact.mlf.metadata import HOST

SOURCES = f"codegen/{HOST}/src"
OBJECTS = f"codegen/{HOST}/lib"
INCLUDE = f"codegen/{HOST}/include"
PARAMETERS = "parameters"
IR = "src"
RUNTIME = "runtime"
TEMPLATES = "templates"
