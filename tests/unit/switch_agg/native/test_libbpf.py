"""What libbpf refuses; programs that it takes are tested where they run (tests/contract, tests/integration)."""

from pathlib import Path

import pytest

from switch_agg.errors import UnsupportedError
from switch_agg.native.libbpf import FIX, TRACING_FIX, BpfObject


@pytest.mark.parametrize("fix", [FIX, TRACING_FIX])
def test_what_is_no_object_is_refused_with_the_fix(tmp_path: Path, fix: str) -> None:
    path = tmp_path / "no_object.o"
    path.write_text("text")
    with pytest.raises(UnsupportedError, match=r"no_object\.o cannot be opened") as refused:
        BpfObject(path, fix=fix)
    assert str(refused.value).endswith(fix)
