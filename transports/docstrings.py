"""JSON schemas that say what each option means: by the string below it, as sources have it."""

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema


def attribute_docstrings(cls: type) -> dict[str, str]:
    """By attribute of the class, or of one that it inherits from, the string that follows it; in one line."""
    found: dict[str, str] = {}
    for each in reversed(cls.__mro__):
        if each not in (object, BaseModel):
            found |= _module_docstrings(each.__module__).get(each.__qualname__, {})
    return found


@cache
def _module_docstrings(module: str) -> Mapping[str, Mapping[str, str]]:
    """By qualified name of each class of a module, those of its own attributes. A module's source is read once,
    whatever the number of its classes: a spec's mistake is explained by a schema of a hundred."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (KeyError, OSError, TypeError):  # there is no source
        return {}
    return {name: _followed(definition.body) for name, definition in _classes(tree.body, "")}


def _classes(body: Sequence[ast.stmt], within: str) -> Iterator[tuple[str, ast.ClassDef]]:
    for each in body:
        if isinstance(each, ast.ClassDef):
            yield within + each.name, each
            yield from _classes(each.body, f"{within}{each.name}.")
        elif isinstance(each, ast.FunctionDef):
            yield from _classes(each.body, f"{within}{each.name}.<locals>.")


def _followed(body: Sequence[ast.stmt]) -> dict[str, str]:
    """By attribute, the string that follows it."""
    found = {}
    for attribute, following in pairwise(body):
        match attribute, following:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                found[name] = " ".join(text.split())
    return found


class DescribedSchema(GenerateJsonSchema):
    """Pydantic's, in which properties are described; what they are described as already (a unit) stands behind it.

    pydantic's own `use_attribute_docstrings` reads the sources of every class when it is defined, which takes a third
    of the time of importing them.
    """

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        """A model's."""
        found = super().model_schema(schema)
        cls: type[BaseModel] = schema["cls"]
        for name, text in attribute_docstrings(cls).items():
            field = cls.model_fields.get(name)
            described = found.get("properties", {}).get(field.alias or name) if field else None
            if described is not None:
                unit = described.get("description")
                described["description"] = f"{text} ({unit})" if unit else text
        return found
