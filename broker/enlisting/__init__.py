"""Messages join a database transaction: what is staged in it, and how it ends.

`enlistment` is the state machine, free of any database library. `sqlalchemy_events` drives it by the events of
SQLAlchemy's sessions and connections; `sqlalchemy_checks` refuses the sessions in which a message and a row could part;
`sqlalchemy_rows` is the ledger's table as such a transaction sees it. The producer is the only caller. An adapter for
another database layer drives `Enlistment` in the same way: see its docstring.
"""
