from pydantic import BaseModel, Field

from transports.docstrings import DescribedSchema, attribute_docstrings


class Base(BaseModel):
    """Has one."""

    length: int = 1
    """How long,
    in one line."""
    silent: int = 2


class Derived(Base):
    """Has more, and another text of the first."""

    length: int = 3
    """How long it is here."""
    wait_s: float = Field(0.0, alias="wait", description="seconds")
    """Before it begins."""


def test_each_option_has_the_string_below_it_its_own_before_an_inherited_one() -> None:
    assert attribute_docstrings(Base) == {"length": "How long, in one line."}
    assert attribute_docstrings(Derived) == {"length": "How long it is here.", "wait_s": "Before it begins."}
    assert attribute_docstrings(int) == {}


def test_classes_of_one_name_are_distinguished_and_those_without_a_source_have_none() -> None:
    class Base(BaseModel):
        length: int = 1
        """Of another class."""

        class Inner(BaseModel):
            length: int = 1
            """Of one inside it."""

    assert attribute_docstrings(Base) == {"length": "Of another class."}
    assert attribute_docstrings(Base.Inner) == {"length": "Of one inside it."}
    assert attribute_docstrings(type("Made", (Base,), {"__module__": "nowhere"})) == {"length": "Of another class."}


def test_the_schema_says_so_by_the_names_of_specs_with_the_unit_behind() -> None:
    properties = Derived.model_json_schema(schema_generator=DescribedSchema)["properties"]
    assert properties["length"]["description"] == "How long it is here."
    assert properties["wait"]["description"] == "Before it begins. (seconds)"
    assert "description" not in properties["silent"]
