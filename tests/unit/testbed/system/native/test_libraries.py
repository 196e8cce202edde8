import ctypes

from testbed.system.native.libraries import build_libraries


def test_they_are_built_once_and_can_be_loaded() -> None:
    libraries = build_libraries()
    assert len(libraries) == 5
    for path in libraries:
        ctypes.CDLL(str(path))
    assert build_libraries() == libraries
