"""On the path of a shop's processes it changes the one line that a cluster needs: broker.connect for broker.open."""

import broker

broker.open = broker.connect  # type: ignore[assignment]
