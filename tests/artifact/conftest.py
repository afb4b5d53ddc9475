import pytest

from tests.artifact.damage import CReader


@pytest.fixture(scope="session")
def c_reader(tmp_path_factory: pytest.TempPathFactory) -> CReader:
    """The runtime's reader of containers, under sanitizers."""
    return CReader(tmp_path_factory.mktemp("reader"))
