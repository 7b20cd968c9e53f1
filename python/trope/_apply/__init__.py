"""`python -m trope apply`: calls of the library on the tensors of a safetensors file. docs/command-line.md describes it.

The contents of a file are identified in this order:

    names.py      groups tensors by their names; each group is a call
    layouts.py    the layout of a call: its batch, tokens and heads
    positions.py  the positions of its tokens
    angles.py     its angles and the elements that they rotate; tables.py reads tables, config.py a Hugging Face config

If two readings fit, the call is refused, and the error names the option that chooses. calls.py makes the calls, compare.py
compares the results, files.py reads safetensors files, and output.py writes a whole file or none. command.py is the
command.
"""
