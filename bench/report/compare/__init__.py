"""Compare the rows of many bundles: ranking, offers, prices, what to buy or rent, and estimates.

Imports bundle and below. Pure, except for reading bundles and prices. `comparison.Comparison` is the result.
"""
