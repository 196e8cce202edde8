"""YAML as people write it: what YAML would silently make of a slip is refused."""

from pathlib import Path
from typing import Any

import yaml


class _Loader(yaml.SafeLoader):
    """Refuses a key that stands twice in one mapping; YAML's own loaders take the last."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: set[tuple[str, Any]] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if (key.tag, key.value) in seen:
                raise yaml.MarkedYAMLError(problem=f"{key.value!r} stands twice", problem_mark=key.start_mark)
            seen.add((key.tag, key.value))
        return node


def read_document(path: Path) -> Any:
    """A file as plain data. Raises ValueError, which says on one line what is wrong with it."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ValueError(f"cannot read {path}: {reason}") from None
    try:
        return load_document(text)
    except ValueError as error:
        raise ValueError(f"{path} {error}") from None


def load_document(text: str) -> Any:
    """Plain data. Raises ValueError, which says on one line where and why a text is not YAML."""
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506 - one of the safe loaders
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"is not YAML: {_problem(error)}") from None


def _problem(error: Exception) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}"
    return " ".join(str(error).split())
