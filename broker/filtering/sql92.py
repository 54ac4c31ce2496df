"""RocketMQ's SQL 92 filters: `price BETWEEN 5 AND 10 AND (region = 'north' OR urgent IS NOT NULL)`.

    or     := and (OR and)*                 and := not (AND not)*              not := NOT not | test
    test   := value (= | <> | < | <= | > | >=) value
            | value [NOT] BETWEEN value AND value | name [NOT] IN ('a', 'b') | name IS [NOT] NULL
            | name [NOT] (CONTAINS | STARTSWITH | ENDSWITH) 'a' | TRUE | FALSE | ( or )
    value  := name | number | 'text' | TRUE | FALSE

Properties are text; beside a number they are numbers, whole ones exact. What is missing, or not a number, makes a test
neither true nor false, as NULL does in SQL. A test that could never be true is refused: `day > 'monday'`, since only
numbers have an order. RocketMQ: SelectorParser, ComparisonExpression, BooleanExpression (5.3.3).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from broker.errors import BrokerError

EXPRESSION_SIZE_MAX, DEPTH_MAX = 4096, 64

Properties = Mapping[str, str]
Value = str | int | float | bool | None
Truth = Callable[[Properties], "bool | None"]
Read = Callable[[Properties], Value]

# Possessive: one that backtracks takes a second for 4,096 digits, in which no other thread runs.
_NUMBER = r"[+-]?(?:\d++(?:\.\d*+)?|\.\d++)(?:[eE][+-]?\d++)?"
_STATED = re.compile(rf"\s*+{_NUMBER}\s*+")
_TOKEN = re.compile(
    rf"\s*(?:(?P<number>{_NUMBER}[lLfFdD]?)(?![\w$])|(?P<text>'(?:[^']|'')*')"
    r"|(?P<name>[A-Za-z_$][\w$.\-]*)|(?P<sign><>|<=|>=|!=|[=<>(),]))",
    re.ASCII,
)
_WORDS = {
    "AND", "OR", "NOT", "BETWEEN", "IN", "IS", "NULL", "TRUE", "FALSE", "CONTAINS", "STARTSWITH", "ENDSWITH",
}  # fmt: skip
_TEXT_TESTS: dict[str, Callable[[str, str], bool]] = {
    "CONTAINS": lambda value, part: part in value,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}
_ORDER: dict[str, Callable[[int | float, int | float], bool]] = {
    "<": lambda left, right: left < right,
    "<=": lambda left, right: left <= right,
    ">": lambda left, right: left > right,
    ">=": lambda left, right: left >= right,
}


class SyntaxFault(BrokerError):
    """An expression that is none; the sentence says where it stops making sense."""


class Operand(NamedTuple):
    """One side of a test: how it is read, and what it always is; None for a property."""

    read: Read
    constant: Value = None

    def check_order(self) -> None:
        """Raises SyntaxFault for what has no order."""
        if self.constant is not None and _number(self.constant) is None:
            raise SyntaxFault(f"only numbers have an order, and {self.constant!r:.60} is none: compare it by = or IN")

    def check_text(self, word: str) -> None:
        """Raises SyntaxFault for a number or a truth, which no list contains."""
        if self.constant is not None and not isinstance(self.constant, str):
            raise SyntaxFault(f"{word} looks at a property, and not at {self.constant!r:.60}")


@dataclass(frozen=True)
class Expression:
    """A parsed expression."""

    text: str
    truth: Truth

    @classmethod
    def parse(cls, text: str) -> Expression:
        """Raises SyntaxFault."""
        if len(text) > EXPRESSION_SIZE_MAX:
            raise SyntaxFault(f"an expression has at most {EXPRESSION_SIZE_MAX} characters, not {len(text)}")
        parser = _Parser(_tokens(text))
        truth = parser.either()
        parser.expect_end()
        return cls(text, truth)

    def matches(self, properties: Properties) -> bool:
        """Whether a message with these properties is wanted."""
        return self.truth(properties) is True


def _tokens(text: str) -> list[tuple[str, str]]:
    """(kind, text) of each token: number, text, name, word or sign."""
    found, at = [], 0
    end = len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            raise SyntaxFault(f"at {text[at : at + 20]!r}: not part of an expression")
        kind, token = match.lastgroup, match[match.lastgroup]
        is_word = kind == "name" and token.upper() in _WORDS
        found.append(("word", token.upper()) if is_word else (kind, token))
        at = match.end()
    return found


class _Parser:
    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self._tokens, self._at, self._depth = tokens, 0, 0

    def _next(self, *wanted: str) -> str | None:
        """The next token if it is one of these words or signs."""
        if self._at < len(self._tokens):
            kind, token = self._tokens[self._at]
            if kind in ("word", "sign") and token in wanted:
                self._at += 1
                return token
        return None

    def _expect(self, wanted: str) -> None:
        if self._next(wanted) is None:
            raise SyntaxFault(f"{wanted} is missing {self._place()}")

    def _place(self) -> str:
        rest = " ".join(token for _, token in self._tokens[self._at : self._at + 3])
        return f"before {rest!r:.60}" if rest else "at the end"

    def expect_end(self) -> None:
        if self._at < len(self._tokens):
            raise SyntaxFault(f"the expression should end {self._place()}")

    def either(self) -> Truth:
        """One OR after the other."""
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise SyntaxFault(f"parentheses are nested more than {DEPTH_MAX} deep")
        parts = [self._both()]
        while self._next("OR"):
            parts.append(self._both())
        self._depth -= 1
        return parts[0] if len(parts) == 1 else lambda properties: _any(part(properties) for part in parts)

    def _both(self) -> Truth:
        parts = [self._negated()]
        while self._next("AND"):
            parts.append(self._negated())
        return parts[0] if len(parts) == 1 else lambda properties: _all(part(properties) for part in parts)

    def _negated(self) -> Truth:
        nots = 0
        while self._next("NOT"):
            nots += 1
        test = self._test()
        return _not(test) if nots % 2 else test

    def _test(self) -> Truth:
        if self._next("("):
            inner = self.either()
            self._expect(")")
            return inner
        left = self._value()
        if sign := self._next("=", "<>", "!=", "<", "<=", ">", ">="):
            return _compared(sign, left, self._value())
        if self._next("IS"):
            negated = self._next("NOT") is not None
            self._expect("NULL")
            return lambda properties: (left.read(properties) is None) is not negated
        negated = self._next("NOT") is not None
        test = self._named_test(left)
        if test is not None:
            return _not(test) if negated else test
        if negated or not isinstance(left.constant, bool):
            raise SyntaxFault(f"a comparison is missing {self._place()}")
        return lambda _: bool(left.constant)

    def _named_test(self, left: Operand) -> Truth | None:
        read = left.read
        if self._next("BETWEEN"):
            low = self._value()
            self._expect("AND")
            at_least, at_most = _compared(">=", left, low), _compared("<=", left, self._value())
            return lambda properties: _all((at_least(properties), at_most(properties)))
        if self._next("IN"):
            left.check_text("IN")
            texts = self._texts()
            return lambda properties: None if (value := read(properties)) is None else value in texts
        if word := self._next(*_TEXT_TESTS):
            left.check_text(word)
            compare, (part,) = _TEXT_TESTS[word], self._text()
            return lambda properties: compare(value, part) if isinstance(value := read(properties), str) else None
        return None

    def _value(self) -> Operand:
        if word := self._next("TRUE", "FALSE"):
            return _always(word == "TRUE")
        kind, token = self._tokens[self._at] if self._at < len(self._tokens) else ("end", "")
        self._at += 1
        if kind == "number":
            return _always(_exact(token.rstrip("lLfFdD")))
        if kind == "text":
            return _always(token[1:-1].replace("''", "'"))
        if kind == "name":
            return Operand(lambda properties: properties.get(token))
        self._at -= 1
        raise SyntaxFault(f"a property, a number or a text is missing {self._place()}")

    def _text(self) -> tuple[str]:
        kind, token = self._tokens[self._at] if self._at < len(self._tokens) else ("end", "")
        if kind != "text":
            raise SyntaxFault(f"a text in quotes is missing {self._place()}")
        self._at += 1
        return (token[1:-1].replace("''", "'"),)

    def _texts(self) -> frozenset[str]:
        self._expect("(")
        found = list(self._text())
        while self._next(","):
            found += self._text()
        self._expect(")")
        return frozenset(found)


def _always(constant: Value) -> Operand:
    return Operand(lambda _: constant, constant)


def _compared(sign: str, left: Operand, right: Operand) -> Truth:
    """A comparison of two values. Texts are equal or not; only numbers have an order. Raises SyntaxFault."""
    if sign in _ORDER:
        left.check_order()
        right.check_order()

    def truth(properties: Properties) -> bool | None:
        first, second = left.read(properties), right.read(properties)
        if first is None or second is None:
            return None
        if sign in _ORDER:
            low, high = _number(first), _number(second)
            return None if low is None or high is None else _ORDER[sign](low, high)
        same = _same(first, second)
        return None if same is None else same is (sign == "=")

    return truth


def _same(first: str | float | bool, second: str | float | bool) -> bool | None:
    if isinstance(first, bool) or isinstance(second, bool):
        return str(first).lower() == str(second).lower()
    if isinstance(first, str) and isinstance(second, str):
        return first == second
    low, high = _number(first), _number(second)
    return None if low is None or high is None else low == high


def _number(value: str | float | bool) -> int | float | None:
    if isinstance(value, str):
        return _exact(value) if _STATED.fullmatch(value) else None
    return None if isinstance(value, bool) else value


def _exact(text: str) -> int | float:
    """A number; a whole one of up to 4,300 digits as it is: identifiers have more digits than a float."""
    try:
        return int(text)
    except ValueError:
        return float(text)


def _not(test: Truth) -> Truth:
    return lambda properties: None if (found := test(properties)) is None else not found


def _any(found: Iterable[bool | None]) -> bool | None:
    truths = list(found)
    return True if True in truths else None if None in truths else False


def _all(found: Iterable[bool | None]) -> bool | None:
    truths = list(found)
    return False if False in truths else None if None in truths else True
