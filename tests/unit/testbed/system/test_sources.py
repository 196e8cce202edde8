import re
import shutil
import subprocess
import sys
from pathlib import Path

from testbed.system.sources import sources_digest

ROOT = Path(__file__).resolve().parents[4]
PRINT = "from testbed.system.sources import sources_digest; print(sources_digest())"


def digest_in(folder: Path) -> str:
    done = subprocess.run([sys.executable, "-c", PRINT], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_same_sources_elsewhere_have_the_same_digest_and_others_have_another(tmp_path: Path) -> None:
    for package in ("testbed", "transports", "switch_agg"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    assert re.fullmatch("[0-9a-f]{64}", sources_digest())
    assert digest_in(tmp_path) == digest_in(ROOT)
    (tmp_path / "transports" / "units.py").write_text("# changed\n")
    assert digest_in(tmp_path) != digest_in(ROOT)
