"""A store carried to a cluster: `checkback move`. Each message once, resumable after a kill, read back at the end.

    contents ──► plan ──► sending ──► read back ──► positions ──► singles (delayed, in doubt) ──► done
    (store)              (catalog: how far it came)

`conversion` says what is sent for a record and is pure; `target` speaks with the cluster; `catalog` is what survives a
kill. Messages of a queue go to one queue of the cluster, in order, so what was sent but not noted is at its end. A
delayed message and a transaction in doubt are noted before they are sent, and looked up by their unique keys.
"""
