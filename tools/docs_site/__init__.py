"""The documentation as a site (`make docs`): pages of docs/, every plan field, and an API reference from docstrings.

It runs in an environment of its own (`docs.lock`), reads the package's source without importing it, and needs no
network.
"""
