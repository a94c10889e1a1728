"""Runtimes: the interpreter and libraries a framework runs in."""
