"""Object storage as a destination, in the layout of TiCDC's storage sink: see docs/formats/storage-sink.md.

settings      options of the sink URI
files         a folder or a bucket whose objects can be replaced
core          names, schema files, the files of a stretch: pure
seen          what the destination holds already: schema files and numbers
destination   plans a stretch and writes it
"""
