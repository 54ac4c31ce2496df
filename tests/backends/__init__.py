"""Where an application's messages may go, as tests see it: a store, one that is served, a real cluster."""
