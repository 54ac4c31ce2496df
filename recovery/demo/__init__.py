"""The flash sale: a shop of several processes that are killed at random, and the proof that nothing went wrong.

    shop        its tables, and what the shop does: one function for each step of the business
    roles       the processes: who sells, who packs, who checks what is in doubt
    crashes     what goes wrong, where, and a line in a file each time it does
    runner      starts them, kills them, waits until all is done
    reconcile   reads the database, and says whether it adds up

The code lies here, and not in `examples/`, so that `checkback demo` works from an installed wheel, under a name that
collides with no other. `examples/flash_sale` shows how to use it.
"""
