import pytest

from tests.selection import may_select

QUIET = "@pytest.mark.quiet  # to a millisecond\ndef test(): ..."
PRIVILEGED = "pytestmark = [pytest.mark.privileged, pytest.mark.timeout(9)]\n@pytest.mark.slow\ndef test(): ..."
PLAIN = "def test_a_quiet_room(): ..."


@pytest.mark.parametrize(
    ("expression", "selected"),
    [
        ("quiet and not slow", [QUIET]),
        ("privileged and not slow and not quiet", [PRIVILEGED]),
        ("not privileged and not slow", [QUIET, PRIVILEGED, PLAIN]),
        ("slow", [PRIVILEGED]),
        ("not (quiet or slow)", [QUIET, PRIVILEGED, PLAIN]),
        ("quiet or privileged", [QUIET, PRIVILEGED]),
        ("hypothesis and not privileged", [QUIET, PRIVILEGED, PLAIN]),
        ("hypothesis and slow", [PRIVILEGED]),
        ("device(serial='1')", [QUIET, PRIVILEGED, PLAIN]),
    ],
)
def test_a_file_is_left_out_only_where_no_test_of_it_can_be_selected(expression: str, selected: list[str]) -> None:
    """One test may have fewer marks than its file names, and marks of plugins are named nowhere."""
    assert [text for text in (QUIET, PRIVILEGED, PLAIN) if may_select(expression, text)] == selected
