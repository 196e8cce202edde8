"""`where:` of a sweep: which combinations of what varies are run. Pure.

    sweep:
      link.rate: [100mbit, 1gbit]
      collective: [ring, tree]
      channel: [tcp, udp]
    where:
      - {collective: ring}                      # a combination is run if one of these fits...
      - {collective: tree, channel: [tcp]}      # ...in every path that it names

One mapping stands for a list of one. Values are those of the axes as the spec writes them, or the kind of one; a list
is one of them, as in the `where` of a claim, or the value of an axis whose values are lists (`background: []`).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from testbed.errors import SpecError
from testbed.experiment.claims import matches

Condition = Mapping[str, Any]


def parse_where(data: object, axes: Mapping[str, Sequence[Any]]) -> tuple[Condition, ...]:
    """The alternatives of a spec's `where`; none where every combination is run.

    `axes` are the values of each path that varies. Raises SpecError that names the path of all that could never be
    meant: a path that does not vary, a value that its axis does not have.
    """
    listed = data if isinstance(data, list) else [data] if data != {} else []
    if data == [] or not all(isinstance(each, Mapping) for each in listed):
        raise SpecError(
            "where: a mapping from paths that vary to values, such as compression: [none, top_k], or a list of such "
            f"mappings (got {data!r})"
        )
    errors = []
    for number, condition in enumerate(listed):
        name = f"where.{number}" if isinstance(data, list) else "where"
        if not condition:
            errors.append(f"{name}: it names no path, so that everything fits; leave it out")
        errors += [
            error for path, wanted in condition.items() for error in _errors(f"{name}.{path}", path, wanted, axes)
        ]
    if errors:
        raise SpecError("\n".join(errors))
    return tuple(listed)


def is_run(settings: Mapping[str, Any], conditions: Sequence[Condition]) -> bool:
    """Whether a combination of settings is one that the sweep runs."""
    return not conditions or any(matches(settings, condition) for condition in conditions)


def _errors(name: str, path: object, wanted: object, axes: Mapping[str, Sequence[Any]]) -> list[str]:
    if path not in axes:
        return [f"{name}: it does not vary; allowed: {', '.join(axes) or 'nothing, since the spec has no `sweep`'}"]
    values = axes[str(path)]
    if wanted in values:  # one that is a list itself, an empty one too, is meant as a whole
        return []
    each = wanted if isinstance(wanted, list) else [wanted]
    if not each:
        return [f"{name}: a value, or a list of at least one (got {wanted!r})"]
    allowed = ", ".join(dict.fromkeys(str(value) for value in values))
    return [
        f"{name}: {value!r} is none of the values that `sweep` lists for it; allowed: {allowed}"
        for value in each
        if not any(matches({str(path): listed}, {str(path): value}) for listed in values)
    ]
