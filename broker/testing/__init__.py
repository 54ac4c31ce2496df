"""For tests, ours and those of applications: a disk that can crash, its model of power cuts, pytest fixtures.

CrashDisk     a Disk in memory whose power can fail at any step (broker.testing.crash_disk)
power_cut     runs a program, cuts the power at each step, recovers, and checks the result
fixtures      a store, a clock that a test moves, a process that is killed (broker.testing.fixtures)
"""
