"""The documentation as a site: the pages of docs/, and pages made from what `bench` itself knows.

`make docs` builds it. Nothing here is part of the installed package.
"""
