"""The manual: what the documents and the schemas say about one word, for people in a terminal.

Reads the pages of docs/ that bench came with. The pages are the only source: nothing is generated from them.
"""
