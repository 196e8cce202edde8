from pathlib import Path

import pytest

from switch_agg.native.cache import cache_directory


def test_the_directory_follows_the_specification(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory() == tmp_path / "ina-testbed"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # must be ignored, says the specification
    assert cache_directory() == Path.home() / ".cache" / "ina-testbed"
