"""A client of a RocketMQ cluster behind the interface of a store: loaded by `broker.connect` alone."""
