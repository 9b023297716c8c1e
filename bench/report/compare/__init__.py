"""Compare the rows of many bundles: ranking, offers, prices, what to buy or rent, and estimates.

Imports bundle and below. Pure but for reading bundles and price files. `comparison.Comparison` is the result.
"""
