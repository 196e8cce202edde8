"""Axes of the experiment space: a folder is an axis, a file in it is one value on it.

Each value is a frozen pydantic model whose fields are its options in a spec. A spec names it by `kind`, or by
`{kind: ..., option: ...}`; a plain string stands for `{kind: string}`.
"""

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer

from transports.docstrings import DescribedSchema
from transports.errors import OptionError


class Options(BaseModel):
    """A value on an axis: frozen, its fields are its options, unknown options are errors, and so are `.inf` and `.nan`,
    which bounds from below let pass and JSON cannot say."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    presets: ClassVar[Mapping[str, Mapping[str, object]]] = {}
    """Further words that a spec may say for this value, each with the options that it stands for."""

    @property
    def kind(self) -> str:
        """The name a spec uses: the name of the file that defines the value."""
        return type(self).__module__.rpartition(".")[2]


OptionsT = TypeVar("OptionsT", bound=Options)


class Registry(Generic[OptionsT]):
    """Every value on one axis, by kind. Listing it imports the axis' folder, so files there import lightly."""

    def __init__(self, axis: str, package: str, *, default: str | None = None) -> None:
        """`default` is the kind of a mapping that names none; without it a mapping must."""
        self.axis = axis
        self.package = package
        self._default = default
        self._classes: dict[str, type[OptionsT]] = {}
        self._loaded = False

    def register(self, cls: type[OptionsT]) -> type[OptionsT]:
        """Class decorator; the kind is the defining file's name."""
        kind = cls.__module__.rpartition(".")[2]
        assert kind not in self._classes, f"two {self.axis} values in one file: {kind}"
        self._classes[kind] = cls
        return cls

    def _load(self) -> None:
        if self._loaded:
            return
        package = importlib.import_module(self.package)
        for module in pkgutil.iter_modules(package.__path__):
            if not module.name.startswith("_"):
                importlib.import_module(f"{self.package}.{module.name}")
        self._loaded = True

    def kinds(self) -> list[str]:
        """The known kinds, sorted."""
        self._load()
        return sorted(self._classes)

    def __iter__(self) -> Iterator[type[OptionsT]]:
        self._load()
        return iter([self._classes[kind] for kind in sorted(self._classes)])

    def __getitem__(self, kind: str) -> type[OptionsT]:
        self._load()
        if kind not in self._classes:
            raise OptionError(f"{kind!r} is not a {self.axis}; allowed: {', '.join(self.kinds())}")
        return self._classes[kind]

    def parse(self, value: object) -> OptionsT:
        """`"ring"` or `{"kind": "ring", ...}` -> the value. Raises OptionError or pydantic's ValidationError."""
        self._load()
        for cls in self._classes.values():
            if isinstance(value, cls):
                return value
        if isinstance(value, str):
            value = self._presets().get(value, {"kind": value})
        if not isinstance(value, dict) or not isinstance(value.get("kind", self._default), str):
            raise OptionError(f"a {self.axis} is {self._shape}; allowed: {', '.join(self.words())}")
        kind = value.get("kind", self._default)
        if kind not in self._classes:
            raise OptionError(f"{kind!r} is not a {self.axis}; allowed: {', '.join(self.words())}")
        options = {str(key): item for key, item in value.items() if key != "kind"}
        return self[kind].model_validate(self._without_others(kind, options) if self._default else options)

    def words(self) -> list[str]:
        """What a spec may say in one word: the kinds and their presets, sorted."""
        return sorted([*self.kinds(), *self._presets()])

    @property
    def _shape(self) -> str:
        return f"a name or a mapping{'' if self._default else ' with a `kind`'}"

    def _presets(self) -> dict[str, dict[str, object]]:
        values = ((kind, self[kind]) for kind in self.kinds())
        return {word: {"kind": kind, **options} for kind, cls in values for word, options in cls.presets.items()}

    def _without_others(self, kind: str, options: dict[str, Any]) -> dict[str, Any]:
        """Where the kind may be left out: options that only other kinds have may be null, which is to leave them out.

        Raises OptionError for one that is not, with the kinds that have it.
        """
        mine = option_names(self[kind])
        kinds = self.kinds()
        elsewhere = {option: [each for each in kinds if option in option_names(self[each])] for option in options}
        for option in options.keys() - mine:
            if elsewhere[option] and options[option] is not None:
                others = " or ".join(f"`kind: {each}`" for each in elsewhere[option])
                raise OptionError(f"`{kind}` has no `{option}`; leave it out, or write {others}")
        return {option: item for option, item in options.items() if option in mine or not elsewhere[option]}

    def dump(self, value: OptionsT) -> dict[str, Any]:
        """The inverse of :meth:`parse`: every option spelled out."""
        return {"kind": value.kind, **value.model_dump(mode="json", by_alias=True)}

    def json_schema(self) -> dict[str, Any]:
        """What a spec may write for this axis, as JSON schema."""
        variants: list[dict[str, Any]] = [{"enum": self.words()}]
        for cls in self:
            schema = cls.model_json_schema(schema_generator=DescribedSchema)
            # The field's schema becomes a part of the spec's, which knows nothing of definitions inside it.
            schema = _inlined(schema, schema.pop("$defs", {}))
            kind = cls.__module__.rpartition(".")[2]
            schema["properties"] = {"kind": {"const": kind}, **schema.get("properties", {})}
            schema["required"] = [*([] if kind == self._default else ["kind"]), *schema.get("required", [])]
            variants.append(schema)
        return {"anyOf": variants}

    def field(self) -> tuple[Any, ...]:
        """Annotations that make a pydantic field of this axis: `Annotated[Collective, *COLLECTIVES.field()]`."""
        return (
            BeforeValidator(self.parse),
            PlainSerializer(self.dump),
            _Documented(self.json_schema),
        )

    def optional_field(self) -> tuple[Any, ...]:
        """The same for a field that may be None."""
        return (
            BeforeValidator(lambda value: None if value is None else self.parse(value)),
            PlainSerializer(lambda value: None if value is None else self.dump(value)),
            _Documented(lambda: {"anyOf": [{"type": "null"}, *self.json_schema()["anyOf"]]}),
        )


@dataclass(frozen=True)
class _Documented:
    """The annotation of a field whose JSON schema is made when it is wanted (pydantic, "Customizing JSON Schema")."""

    make: Callable[[], dict[str, Any]]

    def __get_pydantic_json_schema__(self, _schema: object, _handler: object) -> dict[str, Any]:
        return self.make()


def option_names(options: type[BaseModel]) -> set[str]:
    """As a spec writes them."""
    return {field.alias or name for name, field in options.model_fields.items()}


def _inlined(schema: Any, definitions: dict[str, Any]) -> Any:
    """A JSON schema with its references replaced by what they refer to."""
    if isinstance(schema, list):
        return [_inlined(item, definitions) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inlined(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    return {key: _inlined(item, definitions) for key, item in schema.items()}
