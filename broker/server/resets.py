"""Which clients are yet to learn that their group was put elsewhere in a queue.

The server does not know which client has a queue: clients divide them. One that lost it may have a pull that waits
still, and one that has it may pull after minutes. So each client that asked for the queue or pulled from it before
learns of a reset by a pull of its own. One that never did goes on where it likes.
RocketMQ 5.3.3 has the first pull alone learn of it (`queryThenEraseResetOffset`), before that all clients of the group
(RESET_CONSUMER_CLIENT_OFFSET).
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from broker.server.clients import Peer


class Reset:
    """A queue whose group was put elsewhere, and what its clients know of that."""

    def __init__(self, peers: Iterable[Peer], until_s: float) -> None:
        """`peers` are the clients that may go on where they were; `until_s` is for one that is not known."""
        self._has_asked = dict.fromkeys(peers, False)
        self._is_learned = False
        self.until_s = until_s

    def concerns(self, peer: Peer | None) -> bool:
        """Whether a client is yet to learn of it: it was there, or is the first one of all."""
        return peer in self._has_asked or not self._is_learned

    def asked(self, peer: Peer) -> None:
        """A client was answered where its group stands: it may have been given the queue since the reset."""
        if self.concerns(peer):
            self._has_asked[peer] = True

    def take(self, peer: Peer, *, is_there: bool) -> bool:
        """Whether the pull of a client is to be answered with the reset, once.

        One that asked where the group stands, and pulls from there, knows. One that pulls from there and did not ask
        may have earlier messages in hand, and its next commit would undo the reset.
        """
        if not self.concerns(peer):
            return False
        knows = self._has_asked.pop(peer, False) and is_there
        self._is_learned = True
        return not knows

    def is_over(self, peers: Container[Peer], now_s: float, keep_s: float) -> bool:
        """Whether nobody is left of `peers`, the group's clients, who may go on where they were.

        Clients that are gone, or left the group on a connection that stays, may come again for `keep_s` seconds.
        """
        for peer in [peer for peer in list(self._has_asked) if peer not in peers]:
            self._has_asked.pop(peer, None)
        if self._has_asked:
            self.until_s = now_s + keep_s
            return False
        return self._is_learned or self.until_s < now_s
