"""Adapters: a policy of cvrcore inside a federated-learning framework.

`flower`, `nvflare` and `pfl` each import their framework; nothing else in cvrcore does. A
framework that is missing or too old gives an `ImportError` with the pip line to run, see
`extras.require`. The other modules are shared: `roster.Roster` is a selector that is addressed
by the framework's client ids, `options` holds the option objects of the adapters.
"""
