"""Values and files of a store. `writer` is the door for writing, `read.store` for reading.

disk      every system call, lock and map
read      one module for each kind of file in a store
write     what an append goes through
maintain  background tasks, checkpoints, retention
recover   survey, cases, plan, apply: bringing a store in order before it is written to
writer    the opener: knows all parts and puts them together
"""
