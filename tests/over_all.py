"""A test over many values as one test: a thousand of pytest's own take longer to hand out than to run."""

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any


def over_all(name: str, values: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run the test with each value of this argument in turn, as `parametrize` does in tests of their own; the first
    that fails is in the error's notes."""
    every = list(values)
    assert every

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(test)
        others = [parameter for each, parameter in signature.parameters.items() if each != name]
        assert len(others) < len(signature.parameters), f"{test.__name__} has no argument {name}"

        @functools.wraps(test)
        def run(**arguments: Any) -> None:
            for value in every:
                try:
                    test(**{name: value}, **arguments)
                except Exception as error:
                    error.add_note(f"{name} = {value!r}")
                    raise

        run.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
        return run

    return decorate
