"""A RocketMQ name server and broker over one store, for clients in any language: `broker.serve`."""
