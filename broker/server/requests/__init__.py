"""What the server does for each request code: a function of the server's parts and the request."""
