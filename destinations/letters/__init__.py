"""Dead letters: refused changes of a changefeed as files: see docs/formats/dead-letters.md.

core.letter   the name and the bytes of one: pure
place         the folder or bucket
"""
