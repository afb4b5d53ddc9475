"""All rows of the gallery, by name."""

from __future__ import annotations

from tests.gallery import language, timm_models
from tests.gallery.case import named

ROWS = named([*timm_models.ROWS, *language.ROWS])
