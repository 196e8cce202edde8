"""Pages of the site that are made: every key of a spec from its JSON schema, every command from its help, every package
from its docstrings."""

import json
import pkgutil
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from typer.cli import get_docs_for_click
from typer.main import get_command

from testbed.cli import app
from testbed.experiment.sweep import sweep_schema

Schema = Mapping[str, Any]
PACKAGES = {
    "testbed": ("testbed.api", "testbed.errors", "testbed.experiment", "testbed.record", "testbed.traces"),
    "transports": ("transports",),
    "switch_agg": ("switch_agg",),
}
"""Of `testbed` what a program uses, and what specs, records and traces are."""


def write_reference(folder: Path) -> None:
    """The pages, below this folder; one that has not changed is left as it is, so that only what changed is built."""
    folder.mkdir(exist_ok=True)
    pages = {"spec.md": spec_page(sweep_schema()), "commands.md": commands_page()}
    pages |= {f"{name}.md": package_page(name, rooms) for name, rooms in PACKAGES.items()}
    for name, text in pages.items():
        path = folder / name
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def spec_page(schema: Schema) -> str:
    """A section for each key at the top of a spec."""
    definitions = schema["$defs"]
    lines = ["# Specs", "", "Every key of a spec, from the schema that `testbed schema` prints.", ""]
    for key, value in schema["properties"].items():
        lines += [f"## {key}", "", *_described(_resolved(value, definitions), definitions), ""]
    return "\n".join(lines)


def _described(value: Schema, definitions: Mapping[str, Schema]) -> Iterator[str]:
    """What may stand there: its text, its kinds with their options, or its keys."""
    if "description" in value:
        yield from (value["description"], "")
    kinds = [each for each in value.get("anyOf", ()) if "properties" in each and "kind" in each["properties"]]
    if kinds:
        for kind in kinds:
            yield from (f"**{kind['properties']['kind']['const']}**", "", kind.get("description", ""), "")
            yield from _table({key: each for key, each in kind["properties"].items() if key != "kind"}, definitions)
    elif "properties" in value:
        yield from _table(value["properties"], definitions)
    else:
        text = f"{_type(value, definitions)}{_default(value)}."
        yield from (text[0].upper() + text[1:], "")


def _table(properties: Mapping[str, Schema], definitions: Mapping[str, Schema]) -> Iterator[str]:
    if not properties:
        return
    yield from ("| key | value | default | |", "|---|---|---|---|")
    for key, given in properties.items():
        value = _resolved(given, definitions)
        text = " ".join(str(value.get("description", "")).split()).replace("|", "\\|")
        default = f"`{json.dumps(value['default'])}`" if "default" in value else ""
        yield f"| `{key}` | {_type(value, definitions)} | {default} | {text} |"
    yield ""


def _resolved(value: Schema, definitions: Mapping[str, Schema]) -> Schema:
    """With what it refers to, if it does."""
    if "$ref" not in value:
        return value
    return {**definitions[value["$ref"].rpartition("/")[2]], **value}


def _type(value: Schema, definitions: Mapping[str, Schema]) -> str:
    """What a value may be, in a few words."""
    value = _resolved(value, definitions)
    if "anyOf" in value:
        return " or ".join(dict.fromkeys(_type(each, definitions) for each in value["anyOf"]))
    if "enum" in value:
        return ", ".join(f"`{each}`" for each in value["enum"])
    if "const" in value:
        return f"`{value['const']}`"
    if value.get("examples"):
        return f"such as `{value['examples'][0]}`"
    if value.get("type") == "array" and "items" in value:
        return f"list of {_type(value['items'], definitions)}"
    types = value.get("type", "mapping")
    text = " or ".join(types) if isinstance(types, list) else str(types)
    for bound, words in (("minimum", "at least"), ("exclusiveMinimum", "more than"), ("maximum", "at most")):
        if bound in value:
            text += f", {words} {value[bound]:,}"
    return {"object": "mapping"}.get(text, text)


def _default(value: Schema) -> str:
    return f", default `{json.dumps(value['default'])}`" if "default" in value else ""


def commands_page() -> str:
    """What `--help` says, of all commands."""
    command = get_command(app)
    with command.make_context("testbed", [], resilient_parsing=True) as context:
        text = get_docs_for_click(obj=command, ctx=context, name="testbed", title="Commands")
    # Examples are indented by two, which is no block of code in Markdown.
    return re.sub(r"(?m)^  (?=\S)", "    ", str(text))


def package_page(name: str, rooms: Sequence[str]) -> str:
    """Every module below these that is not private, by its docstrings."""
    package = import_module(name)
    modules = [
        each.name
        for each in pkgutil.walk_packages(package.__path__, f"{name}.")
        if each.name.startswith(tuple(rooms)) and not any(part.startswith("_") for part in each.name.split("."))
        if not each.name.endswith(("_pb2", "_pb2_grpc"))
    ]
    lines = [f"# {name}", "", (package.__doc__ or "").strip(), ""]
    for module in modules:
        lines += [f"## {module}", "", "```{eval-rst}", f".. automodule:: {module}", "   :noindex:", "```", ""]
    return "\n".join(lines)
