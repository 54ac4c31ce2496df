"""Values and files of a store. `writer` is the door for writing, `read.store` for reading.

disk      every system call, lock and map
read      one module for each kind of file in a store
shared    the small files by which processes coordinate
write     what an append goes through
engines   what differs between the two engines of transactions
maintain  background tasks, checkpoints, retention
recover   survey, cases, plan, apply: bringing a store in order before it is written to
writer    the opener: knows all parts and puts them together
"""
