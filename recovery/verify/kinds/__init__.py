"""The kinds of files that today's brokers write besides the plain ones: how each is compared, and which are not."""
