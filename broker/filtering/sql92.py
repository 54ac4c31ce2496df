"""RocketMQ's SQL 92 filters: `price BETWEEN 5 AND 10 AND (region = 'north' OR urgent IS NOT NULL)`.

    or     := and (OR and)*                 and := not (AND not)*              not := NOT not | test
    test   := value (= | <> | < | <= | > | >=) value
            | value [NOT] BETWEEN value AND value | name [NOT] IN ('a', 'b') | name IS [NOT] NULL
            | name [NOT] (CONTAINS | STARTSWITH | ENDSWITH) 'a' | TRUE | FALSE | ( or )
    value  := name | number | 'text' | TRUE | FALSE

Properties are text; beside a number they are numbers. What is missing, or not a number, makes a test neither true
nor false, as NULL does in SQL. RocketMQ: SelectorParser, ComparisonExpression, BooleanExpression (5.3.3).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from broker.errors import BrokerError

EXPRESSION_SIZE_MAX, DEPTH_MAX = 4096, 64

Properties = Mapping[str, str]
Value = str | float | bool | None
Truth = Callable[[Properties], "bool | None"]
Read = Callable[[Properties], Value]

# Possessive: one that backtracks takes a second for 4,096 digits, in which no other thread runs.
_NUMBER = r"[+-]?(?:\d++(?:\.\d*+)?|\.\d++)(?:[eE][+-]?\d++)?"
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
_ORDER: dict[str, Callable[[float, float], bool]] = {
    "<": lambda left, right: left < right,
    "<=": lambda left, right: left <= right,
    ">": lambda left, right: left > right,
    ">=": lambda left, right: left >= right,
}


class SyntaxFault(BrokerError):
    """An expression that is none; the sentence says where it stops making sense."""


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
        read, is_name = self._value()
        if sign := self._next("=", "<>", "!=", "<", "<=", ">", ">="):
            return _compared(sign, read, self._value()[0])
        if self._next("IS"):
            negated = self._next("NOT") is not None
            self._expect("NULL")
            return lambda properties: (read(properties) is None) is not negated
        negated = self._next("NOT") is not None
        test = self._named_test(read)
        if test is None:
            if negated or is_name:
                raise SyntaxFault(f"a comparison is missing {self._place()}")
            return lambda properties: value if isinstance(value := read(properties), bool) else None
        return _not(test) if negated else test

    def _named_test(self, read: Read) -> Truth | None:
        if self._next("BETWEEN"):
            low = self._value()[0]
            self._expect("AND")
            at_least, at_most = _compared(">=", read, low), _compared("<=", read, self._value()[0])
            return lambda properties: _all((at_least(properties), at_most(properties)))
        if self._next("IN"):
            texts = self._texts()
            return lambda properties: None if (value := read(properties)) is None else value in texts
        if word := self._next(*_TEXT_TESTS):
            compare, (part,) = _TEXT_TESTS[word], self._text()
            return lambda properties: compare(value, part) if isinstance(value := read(properties), str) else None
        return None

    def _value(self) -> tuple[Read, bool]:
        """How a value is read, and whether it is a property."""
        if word := self._next("TRUE", "FALSE"):
            return lambda _: word == "TRUE", False
        kind, token = self._tokens[self._at] if self._at < len(self._tokens) else ("end", "")
        self._at += 1
        if kind == "number":
            number = float(token.rstrip("lLfFdD"))
            return lambda _: number, False
        if kind == "text":
            text = token[1:-1].replace("''", "'")
            return lambda _: text, False
        if kind == "name":
            return lambda properties: properties.get(token), True
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


def _compared(sign: str, left: Read, right: Read) -> Truth:
    """A comparison of two values. Texts are equal or not; only numbers have an order."""

    def truth(properties: Properties) -> bool | None:
        first, second = left(properties), right(properties)
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


def _number(value: str | float | bool) -> float | None:
    if isinstance(value, bool):
        return None
    try:
        return float(value)
    except ValueError:
        return None


def _not(test: Truth) -> Truth:
    return lambda properties: None if (found := test(properties)) is None else not found


def _any(found: Iterable[bool | None]) -> bool | None:
    truths = list(found)
    return True if True in truths else None if None in truths else False


def _all(found: Iterable[bool | None]) -> bool | None:
    truths = list(found)
    return False if False in truths else None if None in truths else True
