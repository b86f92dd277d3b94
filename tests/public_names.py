"""The public names: what the reference must list, each with an example that runs."""

import doctest
import importlib
import inspect

#: Modules whose ``__all__``, or else whose own names, are public.
MODULES = (
    "cvrcore",
    "cvrcore.selectors",
    "cvrcore.aggregators",
    "cvrcore.features",
    "cvrcore.head",
    "cvrcore.state",
    "cvrcore.erasure",
    "cvrcore.testing",
    "cvrcore.tracking",
    "cvrcore.plot",
    "cvrcore.draws.allocation",
    "cvrcore.draws.inclusion",
    "cvrcore.draws.pivotal",
    "cvrcore.draws.pps",
    "cvrcore.integrations.roster",
    "fl",
    "fl.data",
    "fl.experiments",
)
#: Each needs its framework: make test-frameworks.
ADAPTERS = {
    "cvrcore.integrations.flower": "flwr",
    "cvrcore.integrations.nvflare": "nvflare",
    "cvrcore.integrations.pfl": "pfl",
}


def public_objects(module_name):
    """Return the public names of a module and what they stand for."""
    module = importlib.import_module(module_name)
    names = getattr(module, "__all__", None)
    if names is None:
        names = [
            name
            for name, value in vars(module).items()
            if not name.startswith("_") and getattr(value, "__module__", None) == module_name
        ]
    found = {name: getattr(module, name) for name in names}
    if module_name == "cvrcore.selectors":
        kinds = [module.policy_class(name) for name in module.BUILT_IN]
        found |= {kind.__name__: kind for kind in kinds}
    if module_name == "cvrcore.aggregators":
        found |= {kind.__name__: kind for kind in module.AGGREGATORS.values()}
    return found


def examples_of(value):
    """Return the examples of the docstring of a class or function itself."""
    assert inspect.isclass(value) or inspect.isroutine(value)
    home = importlib.import_module(value.__module__)
    parser = doctest.DocTestParser()
    text = inspect.getdoc(value) or ""
    return parser.get_doctest(text, dict(vars(home)), value.__name__, home.__name__, 0)


def run_examples(value):
    """Run them; return how many there are, and how many failed."""
    found = examples_of(value)
    said = []
    results = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(found, out=said.append)
    assert not results.failed, "".join(said)
    return sum(not example.options.get(doctest.SKIP) for example in found.examples)
