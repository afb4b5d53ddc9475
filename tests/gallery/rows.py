"""All rows of the gallery, by name."""

from __future__ import annotations

from tests.gallery import diffusion, graphs, language, pictures, speech, timm_models, vision, yolo
from tests.gallery.case import named

PARTS = (timm_models, language, pictures, speech, diffusion, vision, yolo, graphs)
ROWS = named(row for part in PARTS for row in part.ROWS)
