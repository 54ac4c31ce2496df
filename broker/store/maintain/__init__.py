"""What no append should wait for: background tasks, checkpoints, retention."""
