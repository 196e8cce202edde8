import re
import shutil
import subprocess
import sys
from pathlib import Path

from testbed.system.sources import code_digest

ROOT = Path(__file__).resolve().parents[4]
PRINT = "from testbed.system.sources import code_digest; print(code_digest())"


CHANGES = """
from pathlib import Path
from testbed.system.sources import code_changed, code_digest
begun, source = code_digest(), Path("transports/channels/_tcp/tcp.c")
assert not code_changed()
content = source.read_text()
source.write_text(content + "// changed")
assert code_changed() and code_digest() == begun
source.write_text(content)
assert not code_changed()
Path("transports/units.py").unlink()
assert code_changed()
"""


def copy_packages(folder: Path) -> None:
    for package in ("testbed", "transports", "switch_agg"):
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))


def digest_in(folder: Path) -> str:
    done = subprocess.run([sys.executable, "-c", PRINT], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_same_sources_elsewhere_have_the_same_digest_and_others_have_another(tmp_path: Path) -> None:
    copy_packages(tmp_path)
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
    recording = next((tmp_path / "testbed" / "traces" / "recordings").glob("*.json"))
    recording.write_text(recording.read_text().replace("1", "2"))
    assert digest_in(tmp_path) not in {here, changed}, "how long a network computes"
    (tmp_path / "transports" / "units.py").write_text("# changed\n")
    assert digest_in(tmp_path) not in {here, changed}


def test_sources_that_change_under_a_process_are_noticed_and_its_digest_stays_what_it_was(tmp_path: Path) -> None:
    copy_packages(tmp_path)
    done = subprocess.run([sys.executable, "-c", CHANGES], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_notebook_s_runs_are_compared_with_what_it_imported_before_them() -> None:
    """Its first run may come days later."""
    script = "import testbed; testbed.predict; from testbed.system.sources import code_digest as digest; "
    script += "assert digest.cache_info().currsize == 1"
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=False).returncode == 0
