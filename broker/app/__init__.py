"""Applications: handlers of messages, typed bodies, retry policies. `broker.App` is the door."""
