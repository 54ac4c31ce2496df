"""Values and files: every open, lock, sync and rename. One module for each kind of file in a store folder."""
