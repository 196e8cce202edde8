"""Names of emulated hosts: what each is called, which address that is, and how everybody comes to know. Pure.

A name is looked up in `/etc/hosts` (hosts(5)), which glibc, musl, Go and Java all read, and not by variables such as
HOSTALIASES, which only glibc honours. A run has one such file for all of its hosts, mounted over the machine's within
their mount namespaces alone (testbed.hosts.naming); a container is given the same lines by Docker.
"""

import re
import socket
import sys
from collections.abc import Iterator, Mapping
from typing import Final

_SERVICE: Final = re.compile(r"([^\s\[\]]+)(\s*\[[^\]]*\])?")
"""Of a line of nsswitch.conf, with what is to be done after it."""
RESOLVER: Final = """# Emulated networks lead to no name server; whoever asks one here is refused at once.
nameserver 127.0.0.1
options timeout:1 attempts:1
"""
"""A `resolv.conf` (resolv.conf(5)). With the machine's own, a name that is in no file takes 10 s to be unknown: the
questions go out through the emulated links and end at a switch."""
_HEADER: Final = "# The hosts of this run, then what this machine's own file says.\n"


def hosts_text(names: Mapping[str, str], machine: str) -> str:
    """The run's `/etc/hosts`: each name with its address, then the machine's own lines without those names.

    The run's come first because the first line wins in both directions (glibc without `multi on`, hosts(5)); a name
    that the machine uses for something else is taken out of its lines, because musl and Go join all lines.
    """
    own = "".join(f"{address}\t{name}\n" for name, address in names.items())
    return _HEADER + own + "".join(_without(line, names) for line in machine.splitlines())


def _without(line: str, names: Mapping[str, str]) -> str:
    entry, mark, comment = line.partition("#")
    address, *found = entry.split() or [""]
    kept = [name for name in found if name not in names]
    if kept == found:
        return f"{line}\n"
    return f"{address}\t{' '.join(kept)} {mark}{comment}".rstrip() + "\n" if kept else ""


def files_first(text: str) -> str | None:
    """A `nsswitch.conf` (nsswitch.conf(5)) by which host names are looked up in files before anywhere else; None where
    they are already.

    With `resolve` or `myhostname` before `files` a service of the machine answers, which knows nothing of the run.
    """
    lines = text.splitlines()
    for index, line in enumerate(lines):
        database, colon, services = line.partition("#")[0].partition(":")
        if not colon or database.strip() != "hosts":
            continue
        found = [(match[1], match[0]) for match in _SERVICE.finditer(services)]
        if found and found[0][0] == "files":
            return None
        lines[index] = " ".join(["hosts: files", *(text for service, text in found if service != "files")])
        return "\n".join([*lines, ""])
    return None


def hosts_differences(text: str, names: Mapping[str, str]) -> list[str]:
    """What an `/etc/hosts` says of the names, or of their addresses, that is not so; empty when all is as planned."""
    addresses: dict[str, set[str]] = {}
    first: dict[str, str] = {}
    for address, found in _entries(text):
        for name in found:
            addresses.setdefault(name, set()).add(address)
        if found:
            first.setdefault(address, found[0])
    differences = [
        f"{name} is {' and '.join(sorted(addresses.get(name, ()))) or 'nobody'} in /etc/hosts, requested {address}"
        for name, address in names.items()
        if addresses.get(name) != {address}
    ]
    return differences + [
        f"{address} is {first[address]} in /etc/hosts, requested {name}"
        for name, address in names.items()
        if first.get(address, name) != name
    ]


def _entries(text: str) -> Iterator[tuple[str, list[str]]]:
    for line in text.splitlines():
        address, *found = line.partition("#")[0].split() or [""]
        if address:
            yield address, found


def main(own: str, *names: str) -> None:
    """Resolve `name=address` each, in both directions, by this process' own C library, as any program would; `own` is
    what the host is to be called. Ends with a line for everything that is not so."""
    found = [] if socket.gethostname() == own else [f"the host is called {socket.gethostname()}, requested {own}"]
    for name, address in (each.split("=") for each in names):
        try:
            forward = {str(each[4][0]) for each in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)}
            backward = socket.gethostbyaddr(address)[0]
        except OSError as error:
            found.append(f"{name} ({address}) cannot be looked up: {error}")
            continue
        if forward != {address} or backward != name:
            found.append(f"{name} is {' and '.join(sorted(forward))}, and {address} is {backward}; requested {address}")
    if found:
        sys.exit("\n".join(found))
