import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.experiment.experiment import validate
from testbed.plan import names
from testbed.plan.names import files_first, hosts_differences, hosts_text
from testbed.plan.plan import make_plan

NAMES = {"w0": "10.0.0.2", "w1": "10.0.0.6", "a0": "10.0.0.10"}


def test_the_runs_names_come_first_and_the_machines_own_lines_stay() -> None:
    machine = "127.0.0.1 localhost\n# printers\n10.1.1.1\tprinter lp  # second floor\n::1 localhost ip6-localhost\n"
    text = hosts_text(NAMES, machine)
    assert text.splitlines()[1:4] == ["10.0.0.2\tw0", "10.0.0.6\tw1", "10.0.0.10\ta0"]
    assert text.endswith(machine)
    assert hosts_differences(text, NAMES) == []


def test_a_name_that_the_machine_uses_is_the_runs() -> None:
    """All lines count to musl and Go, the first to glibc."""
    text = hosts_text(NAMES, "192.168.1.7 w1 database # of w1\n192.168.1.8 w0\n")
    assert "192.168.1.7\tdatabase # of w1\n" in text
    assert "192.168.1.8" not in text
    assert hosts_differences(text, NAMES) == []


ENTRIES = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(["127.0.0.1", "10.0.0.2", "10.0.0.6", "::1", "8.8.8.8"]),
            st.lists(st.sampled_from(["w0", "w1", "a0", "localhost", "printer"]), min_size=1, max_size=3),
        ).map(lambda entry: f"{entry[0]} {' '.join(entry[1])}"),
        st.text(alphabet="# \tw01.ä\udcff", max_size=8).map(lambda text: f"#{text}"),
        st.just(""),
    )
)


@given(lines=ENTRIES)
def test_whatever_the_machines_file_says_the_runs_names_are_what_they_are(lines: list[str]) -> None:
    text = hosts_text(NAMES, "\n".join(lines))
    assert hosts_differences(text, NAMES) == []
    found = {name for line in text.splitlines() for name in line.partition("#")[0].split()[1:]}
    kept = {name for line in lines for name in line.partition("#")[0].split()[1:]}
    assert kept | set(NAMES) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("10.0.0.2 w0\n10.0.0.6 w1\n", ["a0 is nobody in /etc/hosts, requested 10.0.0.10"]),
        (
            "10.0.0.2 w0\n10.0.0.6 w1\n10.0.0.10 a0\n127.0.0.1 w1\n",
            ["w1 is 10.0.0.6 and 127.0.0.1 in /etc/hosts, requested 10.0.0.6"],
        ),
        ("10.0.0.2 gone w0\n10.0.0.6 w1\n10.0.0.10 a0\n", ["10.0.0.2 is gone in /etc/hosts, requested w0"]),
    ],
)
def test_what_is_not_as_planned_is_named(text: str, found: list[str]) -> None:
    assert hosts_differences(text, NAMES) == found


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("hosts: files dns", None),
        ("hosts:\tfiles[NOTFOUND=return] dns", None),
        ("passwd: files systemd", None),
        ("# hosts: dns files", None),
        ("hosts: dns files", "hosts: files dns"),
        (
            "hosts:  mymachines resolve [!UNAVAIL=return] files myhostname dns # arch",
            "hosts: files mymachines resolve [!UNAVAIL=return] myhostname dns",
        ),
        (
            "hosts: mdns4 [NOTFOUND=return SUCCESS=return] files [NOTFOUND=continue] dns",
            "hosts: files mdns4 [NOTFOUND=return SUCCESS=return] dns",
        ),
        ("hosts: dns", "hosts: files dns"),
    ],
)
def test_names_are_looked_up_in_files_first(line: str, wanted: str | None) -> None:
    assert files_first(f"passwd: files\n{line}\n") == (None if wanted is None else f"passwd: files\n{wanted}\n")


def test_every_host_of_a_plan_has_a_name() -> None:
    spec = {
        "name": "t",
        "workers": 4,
        "workers_per_host": 2,
        "hosts": {"x0": {"at": "s0"}},
        "collective": {"kind": "parameter_server", "servers": 1},
    }
    found = make_plan(validate(spec)).host_names()
    assert list(found) == ["w0", "w1", "w2", "w3", "ps0", "x0"]
    assert len(set(found.values())) == 6


def test_a_host_that_is_called_something_else_is_noticed() -> None:
    with pytest.raises(SystemExit, match=r"the host is called .*, requested elsewhere"):
        names.main("elsewhere")


def test_lookups_are_those_of_the_library() -> None:
    names.main(socket.gethostname())
    with pytest.raises(SystemExit, match=r"nobody\.invalid \(127\.0\.0\.1\) cannot be looked up"):
        names.main(socket.gethostname(), "nobody.invalid=127.0.0.1")
    with pytest.raises(SystemExit, match=r"localhost is .*; requested 127\.9\.9\.9|cannot be looked up"):
        names.main(socket.gethostname(), "localhost=127.9.9.9")
