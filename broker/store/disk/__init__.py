"""Every system call of a store: files, maps, locks, paths. Nothing else in broker/ opens a file."""
