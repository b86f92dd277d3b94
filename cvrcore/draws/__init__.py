"""Scores and labels -> the clients of a round: Algorithm 1, lines 7 to 9.

Laws inside coalitions, allocation of places, inclusion probabilities. Imports neither
`clustering` nor `covariance`.
"""
