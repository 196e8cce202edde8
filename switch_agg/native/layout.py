"""Structures that C and Python share: Python says where every field lies, and C that has it elsewhere is not compiled.

A layout becomes part of what is compiled (`build(..., layouts=...)`), so that a program or library exists only where
both sides agree on the offset and the size of every field, and on the size of the whole.
"""

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple


class Field(NamedTuple):
    """Of a structure."""

    path: str
    """As C writes it: `losses.good`."""
    offset: int
    num_bytes: int


class Layout(NamedTuple):
    """Of a `struct` of that name."""

    struct: str
    fields: tuple[Field, ...]
    num_bytes: int


def layout_of(struct: str, kind: Any, renamed: Mapping[str, str] | None = None) -> Layout:
    """Of what Python has as a ctypes structure or a numpy type; `renamed` has C's names where they differ.

    Fields that begin with `padding` are Python's alone.
    """
    is_ctypes = isinstance(kind, type) and issubclass(kind, ctypes.Structure)
    found = _ctypes_fields(kind) if is_ctypes else _numpy_fields(kind)
    fields = (field._replace(path=(renamed or {}).get(field.path, field.path)) for field in found)
    num_bytes = ctypes.sizeof(kind) if is_ctypes else kind.itemsize
    return Layout(struct, tuple(field for field in fields if not field.path.startswith("padding")), num_bytes)


def _ctypes_fields(kind: type[ctypes.Structure]) -> Iterator[Field]:
    for name, *_ in kind._fields_:
        described = getattr(kind, name)
        yield Field(name, described.offset, described.size)


def _numpy_fields(kind: Any, prefix: str = "", start: int = 0) -> Iterator[Field]:
    for name in kind.names:
        inner, offset = kind.fields[name][:2]
        if inner.names is None:
            yield Field(f"{prefix}{name}", start + int(offset), int(inner.itemsize))
        else:
            yield from _numpy_fields(inner, f"{prefix}{name}.", start + int(offset))


def assertions(layouts: Sequence[Layout]) -> str:
    """In C, behind the structures' definitions."""
    lines = []
    for struct, fields, num_bytes in layouts:
        whole = f"struct {struct}"
        lines.append(f'_Static_assert(sizeof({whole}) == {num_bytes}, "{whole}: size in Python is {num_bytes}");')
        for path, offset, size in fields:
            there = f"__builtin_offsetof({whole}, {path}) == {offset} && sizeof((({whole} *)0)->{path}) == {size}"
            lines.append(f'_Static_assert({there}, "{whole}.{path}: in Python {size} bytes at {offset}");')
    return "\n".join([*lines, ""])
