"""Which files may hold what `-m` selects, by the marks that stand in their text.

Importing every test takes 10 s of a core, in each of the parts of `make test`; the part of the quiet tests needs a
dozen files. What no file's text decides, such as marks that plugins give, is left to pytest.
"""

import ast
import re
from typing import Final

MARKS: Final = ("privileged", "browser", "quiet", "slow")
"""Those that stand in the file whose tests have them: tests/test_repository.py looks."""


def may_select(expression: str, text: str) -> bool:
    """Whether some test in a file of this text may have marks for which the expression holds."""
    known = set(re.findall(r"\bmark\.(\w+)", text))
    return _outcomes(ast.parse(expression.strip(), mode="eval").body, known)[0]


def _outcomes(node: ast.expr, known: set[str]) -> tuple[bool, bool]:
    """Whether it may be true, and whether it may be false, of a test that has some of these marks."""
    match node:
        case ast.Name(id=name):
            return name in known or name not in MARKS, True
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            true, false = _outcomes(operand, known)
            return false, true
        case ast.BoolOp(op=operator, values=values):
            trues, falses = zip(*(_outcomes(each, known) for each in values), strict=True)
            return (all(trues), any(falses)) if isinstance(operator, ast.And) else (any(trues), all(falses))
    return True, True
