"""What an operator watches of a store, as numbers for Prometheus; and the thread in which an application answers."""
