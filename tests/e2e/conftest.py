import pytest

from attnd_process import Attnd


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """One server for a file of tests; it must end with 0."""
    attnd = Attnd(tmp_path_factory.mktemp("attnd"), "--drain_delay_ms=0")
    yield attnd
    assert attnd.stop() == 0, attnd.log()
