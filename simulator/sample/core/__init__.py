"""The shop and its clock. Pure: a seed and numbers in, statements out."""
