"""What is wrong with a spec, in a spec's own words: the field's path, what is allowed there, what was meant perhaps."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from typing import Any, Final

from pydantic import BaseModel, ValidationError

Path = tuple[int | str, ...]
"""Keys and indices from the spec's top."""

_OTHER_WORDS: Final = {
    "bandwidth": "rate",
    "capacity": "rate",
    "latency": "delay",
    "rtt": "delay",
    "congestion_control": "congestion",
    "num_workers": "workers",
    "nodes": "workers",
    "world_size": "workers",
    "batch": "batch_size",
    "lr": "learning_rate",
    "epochs": "iterations",
    "steps": "iterations",
}
"""By which others know our keys."""


def explanations(
    error: ValidationError, data: Mapping[Any, Any], model: type[BaseModel], *, prefix: Path = ()
) -> list[str]:
    """Every error of a spec, given as plain data, as one line; `model` is the whole spec's.

    An axis value's own validation happens inside the field's and nests; `prefix` is the field then.
    """
    lines: list[str] = []
    for item in error.errors(include_url=False):
        path = (*prefix, *item["loc"])
        if item["type"] == "default_factory_not_called":
            continue  # a default that depends on a key that is wrong itself
        nested = item.get("ctx", {}).get("error")
        if isinstance(nested, ValidationError):
            lines.extend(explanations(nested, data, model, prefix=path))
        else:
            lines.append(_explain(path, item, data, model))
    return lines


_LIST_TYPES: Final = ("tuple_type", "list_type")
_MAPPING_TYPES: Final = ("dict_type", "model_type", "model_attributes_type")
_YAML_WORDS: Final = {
    **dict.fromkeys(_LIST_TYPES, "write a list: [...], or a line `- ...` for each"),
    **dict.fromkeys(_MAPPING_TYPES, "write a mapping, {{key: value}}"),
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "write a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "write a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "write true or false"),
    "greater_than_equal": "allowed: at least {ge:,}",
    "greater_than": "allowed: more than {gt:,}",
    "less_than_equal": "allowed: at most {le:,}",
    "less_than": "allowed: less than {lt:,}",
    "literal_error": "allowed: {expected}",
}
"""What pydantic calls by Python's names, or says without what is allowed; by its kind of error, whose facts stand in
braces."""


def _explain(path: Path, item: Any, data: Mapping[Any, Any], model: type[BaseModel]) -> str:
    """One pydantic error as `field.path: what is wrong; what is allowed`."""
    shown = _dotted(path) or "spec"
    if item["type"] == "missing":
        return f"{shown}: required"
    schema = _schema_of(model)
    if item["type"] == "extra_forbidden":
        allowed = _allowed_keys(path, data, schema)
        perhaps = _perhaps(path, allowed, schema)
        return f"{shown}: unknown key; allowed: {', '.join(allowed) or 'none'}" + (
            f"; perhaps {' or '.join(perhaps)}" if perhaps else ""
        )
    words = _YAML_WORDS.get(item["type"])
    facts = {name: _whole(fact) for name, fact in item.get("ctx", {}).items()}
    message = words.format(**facts) if words else str(item["msg"]).removeprefix("Value error, ")
    given = item.get("input")
    if item["type"] in _MAPPING_TYPES and (keys := _allowed_keys((*path, ""), data, schema)):
        message += f"; allowed: {', '.join(keys)}"
    if isinstance(given, list) and item["type"] not in _LIST_TYPES and path[:1] != ("sweep",):
        message += f"; to vary it: `sweep: {{{shown}: [...]}}`"
    known = isinstance(given, str | int | float | bool) or given is None
    return f"{shown}: {message}{f' (got {given!r})' if known and repr(given) not in message else ''}"


@cache
def _schema_of(model: type[BaseModel]) -> Mapping[str, Any]:
    """Made once: it takes half a second of a spec's, and a spec may have many errors."""
    return model.model_json_schema(by_alias=True)


def _dotted(path: Path) -> str:
    return ".".join(str(part) for part in path)


def _whole(fact: object) -> object:
    """1000000.0 is 1000000 to a reader."""
    return int(fact) if isinstance(fact, float) and fact.is_integer() else fact


def _allowed_keys(wrong: Path, data: Mapping[Any, Any], schema: Mapping[str, Any]) -> list[str]:
    """The keys of the mapping that has the wrong one; those of an axis' value depend on the kind that the spec
    names."""
    *path, unknown = wrong
    if not path:
        return list(schema["properties"])
    variants: list[Mapping[str, Any]] = [schema]
    given: Any = data
    for part in path:
        variants = [each for variant in variants for each in _inside(variant, part, schema.get("$defs", {}))]
        try:
            given = given[part]
        except (KeyError, IndexError, TypeError):
            given = None
        kind = given.get("kind") if isinstance(given, Mapping) else None
        if kind is not None:
            variants = [each for each in variants if _is_kind(each.get("properties", {}).get("kind", {}), kind)]
    if isinstance(given, Mapping) and len(variants) > 1:  # the one that has most of the keys given
        variants = [each for each in variants if unknown not in each.get("properties", {})] or variants
        best = max(len(given.keys() & each.get("properties", {}).keys()) for each in variants)
        variants = [each for each in variants if len(given.keys() & each.get("properties", {}).keys()) == best]
    return sorted({key for variant in variants for key in variant.get("properties", {})} - {"kind"})


def _perhaps(wrong: Path, allowed: Sequence[str], schema: Mapping[str, Any]) -> list[str]:
    """Where what somebody meant by an unknown key may stand: here by another word, elsewhere in the spec, or here with
    other letters."""
    *path, unknown = wrong
    word = _OTHER_WORDS.get(str(unknown), str(unknown))
    if word in allowed:
        return [_dotted((*path, word))]
    elsewhere = [word] if path and word in schema["properties"] else []
    elsewhere += [
        f"{section}.{word}"
        for section in schema["properties"]
        if section not in path and word in _keys_of_section(section, schema)
    ]
    if elsewhere:
        return elsewhere[:3]
    return [_dotted((*path, close)) for close in get_close_matches(str(unknown), allowed, n=1, cutoff=0.7)]


def _keys_of_section(section: str, schema: Mapping[str, Any]) -> set[str]:
    """Of whatever kind its value is."""
    definitions = schema.get("$defs", {})
    if "additionalProperties" in schema["properties"][section]:
        return set()  # its keys are names of hosts or links
    return {key for variant in _inside(schema, section, definitions) for key in variant.get("properties", {})}


def _is_kind(schema: Mapping[str, Any], kind: object) -> bool:
    """Whether a schema's `kind` may be that: an axis' value has one, other mappings a few."""
    return schema.get("const") == kind or kind in schema.get("enum", ())


def _inside(variant: Mapping[str, Any], part: int | str, definitions: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The schemas that an item, a property, or a mapping's values may have; none where there is none."""
    if isinstance(part, int):
        found = variant.get("items", {})
    else:
        found = variant.get("properties", {}).get(part) or variant.get("additionalProperties") or {}
    several = [found, *found.get("anyOf", []), *found.get("allOf", [])] if found else []
    return [definitions.get(each.get("$ref", "").rpartition("/")[2], each) for each in several]
