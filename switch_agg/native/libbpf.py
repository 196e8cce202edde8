"""What programs in the kernel need of libbpf.so.1 (iproute2 depends on it): load, maps, attach to tc or to tracepoints.
Nothing else."""

import ctypes
import errno
import os
import socket
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar

from switch_agg.errors import UnsupportedError

FIX: Final = "it needs root, a kernel with CONFIG_NET_CLS_BPF, and apt-get install libbpf1"
TRACING_FIX: Final = "it needs root, a kernel of 5.16 or newer with CONFIG_DEBUG_INFO_BTF, and apt-get install libbpf1"
TC_INGRESS: Final = 1
TC_EGRESS: Final = 2
_ANY: Final = 0
StructureT = TypeVar("StructureT", bound=ctypes.Structure)


class _Hook(ctypes.Structure):
    """struct bpf_tc_hook."""

    _fields_ = (
        ("sz", ctypes.c_size_t),
        ("ifindex", ctypes.c_int),
        ("attach_point", ctypes.c_int),
        ("parent", ctypes.c_uint32),
    )


class _Options(ctypes.Structure):
    """struct bpf_tc_opts."""

    _fields_ = (
        ("sz", ctypes.c_size_t),
        ("prog_fd", ctypes.c_int),
        ("flags", ctypes.c_uint32),
        ("prog_id", ctypes.c_uint32),
        ("handle", ctypes.c_uint32),
        ("priority", ctypes.c_uint32),
    )


@cache
def _library() -> ctypes.CDLL:
    try:
        found = ctypes.CDLL("libbpf.so.1", use_errno=True)
    except OSError as error:
        raise UnsupportedError(f"no eBPF: {error}; {FIX}") from error
    found.libbpf_set_print(None)
    for name in ("object__open_file", "object__find_program_by_name", "object__find_map_by_name", "program__attach"):
        getattr(found, f"bpf_{name}").restype = ctypes.c_void_p
    return found


class _Context(ctypes.Structure):
    """struct __sk_buff of linux/bpf.h, of which a trial may set few fields."""

    _fields_ = (
        ("until_gso_size", ctypes.c_uint8 * 176),
        ("gso_size", ctypes.c_uint32),
        ("behind_gso_size", ctypes.c_uint8 * 12),
    )


class BpfObject:
    """A loaded object file: its programs and maps are gone when it is closed, unless something else holds them."""

    def __init__(self, path: Path, *, max_entries: Mapping[str, int] | None = None, fix: str = FIX) -> None:
        """`max_entries` by map, where they are not the program's own; `fix` says what a machine needs.

        Raises UnsupportedError with what the kernel said."""
        library = _library()
        opened = library.bpf_object__open_file(str(path).encode(), None)
        if not opened:
            raise UnsupportedError(f"no eBPF: {path.name} cannot be opened: {_reason()}; {fix}")
        self._object = ctypes.c_void_p(opened)
        self._maps: dict[str, int] = {}
        self._made_hook = False
        self._links: list[ctypes.c_void_p] = []
        for name, entries in (max_entries or {}).items():
            found = ctypes.c_void_p(library.bpf_object__find_map_by_name(self._object, name.encode()))
            if library.bpf_map__set_max_entries(found, ctypes.c_uint32(entries)) != 0:
                raise UnsupportedError(f"no eBPF: map {name} of {entries} entries: {_reason()}")
        if library.bpf_object__load(self._object) != 0:
            reason = _reason()
            library.bpf_object__close(self._object)
            raise UnsupportedError(f"no eBPF: the kernel refuses {path.name}: {reason}; {fix}")

    def attach(self, program: str, interface: int) -> None:
        """To the egress of an interface of the calling thread's network namespace. Raises UnsupportedError, and has
        changed nothing there then."""
        library = _library()
        hook = _Hook(sz=ctypes.sizeof(_Hook), ifindex=interface, attach_point=TC_EGRESS)
        # -EEXIST when there is one already, of somebody else, which stays.
        self._made_hook = library.bpf_tc_hook_create(ctypes.byref(hook)) == 0
        options = _Options(sz=ctypes.sizeof(_Options), prog_fd=self._program(program), handle=1, priority=1)
        result = library.bpf_tc_attach(ctypes.byref(hook), ctypes.byref(options))
        if result == -errno.EEXIST:
            name = socket.if_indextoname(interface)
            raise UnsupportedError(
                f"{name} has such a program already: end the aggregator that it belongs to or, where that was killed, "
                f"remove what it left: tc filter del dev {name} egress (in the namespace of {name})"
            )
        if result != 0:
            self._remove_hook(interface)  # not above: the program that is there already needs it
            raise UnsupportedError(f"no eBPF: cannot attach to interface {interface}: {os.strerror(-result)}; {FIX}")

    def attach_tracing(self, *programs: str) -> None:
        """Each to the tracepoint that its section names, until :meth:`close`. Raises UnsupportedError."""
        library = _library()
        for name in programs:
            program = ctypes.c_void_p(library.bpf_object__find_program_by_name(self._object, name.encode()))
            link = library.bpf_program__attach(program)
            if not link:
                raise UnsupportedError(f"no eBPF: cannot attach {name}: {_reason()}; {TRACING_FIX}")
            self._links.append(ctypes.c_void_p(link))

    def is_attached(self, interface: int) -> bool:
        """Whether the program is where :meth:`attach` put it."""
        hook = _Hook(sz=ctypes.sizeof(_Hook), ifindex=interface, attach_point=TC_EGRESS)
        options = _Options(sz=ctypes.sizeof(_Options), handle=1, priority=1)
        return int(_library().bpf_tc_query(ctypes.byref(hook), ctypes.byref(options))) == 0

    def detach(self, interface: int) -> None:
        """Away again, with the hook where :meth:`attach` made it; an interface that is gone is no error."""
        hook = _Hook(sz=ctypes.sizeof(_Hook), ifindex=interface, attach_point=TC_EGRESS)
        options = _Options(sz=ctypes.sizeof(_Options), handle=1, priority=1)
        _library().bpf_tc_detach(ctypes.byref(hook), ctypes.byref(options))
        self._remove_hook(interface)

    def run(self, program: str, frame: bytes, segment_bytes: int = 0) -> tuple[int, bytes, int]:
        """BPF_PROG_TEST_RUN: the program's verdict on a frame, the frame afterwards, and the nanoseconds.

        With `segment_bytes` the frame stands for several, with so much of the payload each (UDP_SEGMENT). Raises
        OSError.
        """

        class Options(ctypes.Structure):
            """struct bpf_test_run_opts."""

            _fields_ = (
                ("sz", ctypes.c_size_t),
                ("data_in", ctypes.c_void_p),
                ("data_out", ctypes.c_void_p),
                ("data_size_in", ctypes.c_uint32),
                ("data_size_out", ctypes.c_uint32),
                ("ctx_in", ctypes.c_void_p),
                ("ctx_out", ctypes.c_void_p),
                ("ctx_size_in", ctypes.c_uint32),
                ("ctx_size_out", ctypes.c_uint32),
                ("retval", ctypes.c_uint32),
                ("repeat", ctypes.c_int),
                ("duration", ctypes.c_uint32),
                ("flags", ctypes.c_uint32),
                ("cpu", ctypes.c_uint32),
                ("batch_size", ctypes.c_uint32),
            )

        given, after = ctypes.create_string_buffer(frame, len(frame)), ctypes.create_string_buffer(16384)
        context = _Context(gso_size=segment_bytes)
        options = Options(
            sz=ctypes.sizeof(Options),
            ctx_in=ctypes.addressof(context),
            ctx_size_in=ctypes.sizeof(context),
            data_in=ctypes.addressof(given),
            data_out=ctypes.addressof(after),
            data_size_in=len(frame),
            data_size_out=len(after),
            repeat=1,
        )
        result = _library().bpf_prog_test_run_opts(self._program(program), ctypes.byref(options))
        if result != 0:
            raise OSError(-result, os.strerror(-result))
        return options.retval, after.raw[: options.data_size_out], options.duration

    def get(self, name: str, key: ctypes.Structure | int, kind: type[StructureT]) -> StructureT:
        """A value of a map."""
        value = kind()
        if _library().bpf_map_lookup_elem(self._map(name), _pointer(key), ctypes.byref(value)) != 0:
            raise KeyError(f"{name}[{key}]: {_reason()}")
        return value

    def get_per_cpu(self, name: str, key: int, kind: type[StructureT]) -> Sequence[StructureT]:
        """A value of a per-CPU map, of every CPU."""
        values = (kind * int(_library().libbpf_num_possible_cpus()))()
        if _library().bpf_map_lookup_elem(self._map(name), _pointer(key), ctypes.byref(values)) != 0:
            raise KeyError(f"{name}[{key}]: {_reason()}")
        return list(values)

    def set(self, name: str, key: ctypes.Structure | int | ctypes.c_uint64, value: ctypes.Structure | int) -> None:
        """Write a value of a map. Raises OSError."""
        if _library().bpf_map_update_elem(self._map(name), _pointer(key), _pointer(value), ctypes.c_uint64(_ANY)) != 0:
            raise OSError(ctypes.get_errno(), f"{name}[{key}]: {_reason()}")

    def clear_per_cpu(self, name: str, key: int, kind: type[ctypes.Structure]) -> None:
        """Zero a value of a per-CPU map, of every CPU. Raises OSError."""
        zeros = (kind * int(_library().libbpf_num_possible_cpus()))()
        if _library().bpf_map_update_elem(self._map(name), _pointer(key), ctypes.byref(zeros), ctypes.c_uint64(_ANY)):
            raise OSError(ctypes.get_errno(), f"{name}[{key}]: {_reason()}")

    def delete(self, name: str, key: ctypes.Structure | int | ctypes.c_uint64) -> None:
        """Remove a key; one that is not there is no error."""
        _library().bpf_map_delete_elem(self._map(name), _pointer(key))

    def descriptor(self, name: str) -> int:
        """The file descriptor of a map; valid until :meth:`close`."""
        return self._map(name)

    def close(self) -> None:
        """Give the programs and maps back."""
        for link in self._links:
            _library().bpf_link__destroy(link)
        self._links.clear()
        _library().bpf_object__close(self._object)

    def _remove_hook(self, interface: int) -> None:
        """Where :meth:`attach` made it."""
        if self._made_hook:
            both = _Hook(sz=ctypes.sizeof(_Hook), ifindex=interface, attach_point=TC_INGRESS | TC_EGRESS)
            _library().bpf_tc_hook_destroy(ctypes.byref(both))
            self._made_hook = False

    def _map(self, name: str) -> int:
        if name not in self._maps:
            self._maps[name] = _library().bpf_object__find_map_fd_by_name(self._object, name.encode())
        return self._maps[name]

    def _program(self, name: str) -> int:
        library = _library()
        found = ctypes.c_void_p(library.bpf_object__find_program_by_name(self._object, name.encode()))
        return int(library.bpf_program__fd(found))


def _pointer(value: Any) -> Any:
    return ctypes.byref(ctypes.c_uint32(value) if isinstance(value, int) else value)


def _reason() -> str:
    return os.strerror(ctypes.get_errno())
