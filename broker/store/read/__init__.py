"""One module for each kind of file in a store, read with pread. Nothing here changes anything on disk."""
