"""Is this node good? Checks, what they found, the manifest of a check, and many nodes held together.

Imports bundle and below. Inside: judging, then checks, then results, manifest and fleet. Measuring is done by
`runner.check`.
"""
