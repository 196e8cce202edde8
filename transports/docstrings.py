"""JSON schemas that say what each option means: by the string below it, as sources have it."""

import ast
import inspect
import textwrap
from itertools import pairwise

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema


def attribute_docstrings(cls: type) -> dict[str, str]:
    """By attribute of the class, or of one that it inherits from, the string that follows it; in one line."""
    found: dict[str, str] = {}
    for each in reversed(cls.__mro__):
        if each in (object, BaseModel):
            continue
        try:
            (definition,) = ast.parse(textwrap.dedent(inspect.getsource(each))).body
        except (OSError, TypeError):  # there is no source
            continue
        assert isinstance(definition, ast.ClassDef)
        for attribute, following in pairwise(definition.body):
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
