"""Rows of clients -> labels of coalitions: Algorithm 1, lines 3 to 5.

affinity -> operators -> eigensolver (subspace iteration, principal start) -> k-means;
landmarks and Lloyd passes where K x K does not fit; `partitions` keeps everything between
rounds. Imports neither `covariance` nor `draws`.
"""
