"""Data sets as federations: samples, and the clients that hold them."""

from .catalogue import DATASETS, DataSet, check_files, fetch, find_files
from .federation import DataError, Federation
from .files import FileCheck, cache_dir, search_places
from .loading import load_federation

__all__ = [
    "DATASETS",
    "DataError",
    "DataSet",
    "Federation",
    "FileCheck",
    "cache_dir",
    "check_files",
    "fetch",
    "find_files",
    "load_federation",
    "search_places",
]
