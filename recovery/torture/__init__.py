"""Proofs on the user's own disk: kills, power cuts and a full disk lose nothing, and what the disk itself promises.

`recovery.torture.kit.prove` runs them, `checkback torture PATH` shows them. Each proof is also a test of ours, at
another length. Nothing here is imported by an application.

promises        what a proof raises when something acknowledged is gone
second_reader   a second reading of a store, which shares no code with what it verifies
kills           processes that append and end transactions while one after another is killed
power_cuts      lives of a store on a disk whose power fails, with a reader beside the writers
full_disk       lives of a store on a disk that fills up
disk            what a file system does: fsync, dropped caches, renames, allocation, shared maps (measured)
disk_verdict    what these measurements mean (pure)
kit             all of it, bounded in time and space
"""
