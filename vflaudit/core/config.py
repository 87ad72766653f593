"""Parameters with types: one mechanism for protocols, attacks, defenses and games."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from vflaudit.errors import InputError, unknown


class Configurable(BaseModel):
    """An immutable object whose fields are its parameters. `name` is what the command line calls it."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=False)
    name: ClassVar[str]

    def parameters(self) -> dict[str, Any]:
        """All parameters with their values, defaults included, ready for JSON."""
        return self.model_dump(mode="json")


C = TypeVar("C", bound=BaseModel)


def sentence(error: ValidationError, model: type[BaseModel], what: str) -> InputError:
    """The first problem of a validation error as one sentence."""
    problem = error.errors()[0]
    path = [str(part) for part in problem["loc"]]
    if problem["type"] == "extra_forbidden":
        fields: Mapping[str, Any] = model.model_fields
        for part in path[:-1]:
            inner = fields[part].annotation if part in fields else None
            fields = getattr(inner, "model_fields", {})
        return unknown(f"{what} parameter", path[-1], fields)
    where = f" {'.'.join(path)}={problem['input']!r}" if path else ""
    message = problem["msg"].removeprefix("Value error, ")
    return InputError(f"{what}{where}: {message[0].lower()}{message[1:]}")


def configure(model: type[C], settings: Mapping[str, Any], what: str) -> C:
    """Build `model` from settings (strings are converted), or say in one sentence what is wrong."""
    values = {key: None if value == "none" else value for key, value in settings.items()}
    try:
        return model(**values)
    except ValidationError as error:
        raise sentence(error, model, what) from None


def parse_settings(pairs: list[str]) -> dict[str, str]:
    """`["batch_size=32", "model=lr"]` -> dict, as `--set` gives them."""
    settings: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        key = key.strip().replace("-", "_")
        if not equals or not key:
            raise InputError(f"--set {pair!r}: expected NAME=VALUE, as in --set batch_size=32")
        if key in settings:
            raise InputError(f"--set {key!r} is given twice")
        settings[key] = value.strip()
    return settings
