"""RocketMQ's remoting protocol: frames, headers and bodies; pure, for a server and for a client alike."""
