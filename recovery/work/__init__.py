"""`checkback work`: the handlers of an application in processes that are supervised, with check-back inside."""
