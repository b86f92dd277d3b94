"""Adapters: cvrcore inside the frameworks that people already use, one file each.

Importing an adapter imports its framework; nothing else in cvrcore does. A framework that is
missing or too old gives an `ImportError` with the pip line to run, see `extras.require`.
`roster.Roster` is what they share: a selector spoken to in a framework's own client ids.
"""
