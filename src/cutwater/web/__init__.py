"""The web server: the page, REST and what others mount beside them. It reads the store; no pipeline waits for it."""
