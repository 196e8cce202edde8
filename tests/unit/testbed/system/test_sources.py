import re
import shutil
import subprocess
import sys
from pathlib import Path

from testbed.system.sources import code_digest

ROOT = Path(__file__).resolve().parents[4]
PRINT = "from testbed.system.sources import code_digest; print(code_digest())"


def digest_in(folder: Path) -> str:
    done = subprocess.run([sys.executable, "-c", PRINT], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_same_sources_elsewhere_have_the_same_digest_and_others_have_another(tmp_path: Path) -> None:
    for package in ("testbed", "transports", "switch_agg"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    here = digest_in(ROOT)
    assert here == code_digest()
    assert re.fullmatch("[0-9a-f]{64}", here)
    assert digest_in(tmp_path) == here
    (tmp_path / "testbed" / "report" / "templates" / "_style.css").write_text("")
    (tmp_path / "transports" / "channels" / "_tcp" / "build").mkdir(exist_ok=True)
    (tmp_path / "transports" / "channels" / "_tcp" / "build" / ".tcp-0.so.c").write_text("// being compiled\n")
    assert digest_in(tmp_path) == here
    (tmp_path / "transports" / "channels" / "_tcp" / "tcp.c").write_text("// changed\n")
    changed = digest_in(tmp_path)
    assert changed != here
    (tmp_path / "transports" / "units.py").write_text("# changed\n")
    assert digest_in(tmp_path) not in {here, changed}
