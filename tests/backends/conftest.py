"""The places themselves."""

from tests.backends.kinds import backend

__all__ = ["backend"]
