"""The formats of others, read and written, so that they can use our log and we theirs. No pickle anywhere.

files.py       one safetensors file: mapped and checked, or written whole or not at all
folder.py      a full Hugging Face folder, in shards with their index
sparse.py      a change as indices and values (TRL, vLLM)
xor.py         a change as XOR and zstd per tensor, in the layout of a Hugging Face folder (slime, SGLang)
checksums.py   of tensors, under the names that others give them

Whoever reads trusts nothing: lengths, dtypes, positions and digests are checked before anything is used, and a reader
makes new arrays, so that what it was given stays as it was whatever happens.
"""
