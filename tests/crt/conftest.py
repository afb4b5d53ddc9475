from pathlib import Path

import pytest

from tests.link import sample


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample library, linked with the packaged tools."""
    return sample.build(tmp_path_factory.mktemp("sample") / "mlp.so")
