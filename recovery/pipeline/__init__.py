"""A verification in stages that can run apart from each other: inspect splits of the log, join their events, merge.

For `recovery.spark` and the command line. Nothing here imports Spark: whatever runs the stages (this process, a pool of
processes, a cluster) hands values from one to the next.
"""
