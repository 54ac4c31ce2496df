"""The operations page: stores, what is in doubt and parked, consumers, dead letters, the last verification.

One rendering, `page.html`, and one set of facts, `facts.py`, for two hosts: inside Airflow (`recovery.airflow.page`),
and alone (`checkback page`), which is `app.py`, `sessions.py` and `serving.py`.
"""
