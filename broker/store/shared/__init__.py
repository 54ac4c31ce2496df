"""The small files through which the processes of one store coordinate: control page, next offsets, checkpoint, topics.

All but `config/topics.json` lie in `STORE/checkback`. Above: `write`, `maintain` and `recover`; a reader needs none.
"""
