"""Rows from one machine's memory into another's: sockets, TLS, and NIXL."""
