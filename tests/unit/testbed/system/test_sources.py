import re
import shutil
import subprocess
import sys
from pathlib import Path

from testbed.system.sources import code_digest, sources_digest

ROOT = Path(__file__).resolve().parents[4]
PRINT = "from testbed.system.sources import code_digest, sources_digest; print(sources_digest(), code_digest())"


def digests_in(folder: Path) -> list[str]:
    """Of the Python sources, and of all that can change a result."""
    done = subprocess.run([sys.executable, "-c", PRINT], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_the_same_sources_elsewhere_have_the_same_digest_and_others_have_another(tmp_path: Path) -> None:
    for package in ("testbed", "transports", "switch_agg"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    here = digests_in(ROOT)
    assert here == [sources_digest(), code_digest()]
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in here)
    assert digests_in(tmp_path) == here
    (tmp_path / "testbed" / "report" / "templates" / "_style.css").write_text("")
    assert digests_in(tmp_path) == here
    (tmp_path / "transports" / "channels" / "_tcp" / "tcp.c").write_text("// changed\n")
    python, code = digests_in(tmp_path)
    assert (python == here[0], code == here[1]) == (True, False)
    (tmp_path / "transports" / "units.py").write_text("# changed\n")
    assert not {*digests_in(tmp_path)} & {*here}
